"""Long texts are tokenized in pieces, with the same tokens as the whole text."""

import itertools
import unicodedata

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from tasks.text import _splitter
from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import build_tokenizer
from tests.hard_texts import CHARS, LETTERS

VOCAB = [
    *"[PAD] [UNK] [CLS] [SEP] [MASK] a ##a b ##b e ##e the cat ##s . , [ ] 中 각 ##각 ก क i".split(),
    *("\u1100", "##\u1161", "##\u11a8", "##\u093f", "\u0301", "##\u0301", "##\u0307"),
]
FLAGS = list(itertools.product([True, False], [True, False], [None, True, False], [True, False]))
ADDED = {
    "none": [],
    "plain": [AddedToken("<e1>", normalized=False), AddedToken("ca-t", normalized=False)],
    "normalized": [AddedToken("Ae.a", normalized=True), AddedToken("É!", normalized=True)],
    "in words": [AddedToken("ab", normalized=False), AddedToken("BB", normalized=True)],
    "strips": [
        AddedToken("<l>", lstrip=True, rstrip=True, normalized=False),
        AddedToken("a.b", rstrip=True),
    ],
    "single words": [
        AddedToken("a", single_word=True, normalized=False),
        AddedToken("b.", single_word=True),
    ],
    "spaces": [AddedToken("a b", normalized=False), AddedToken(". .", normalized=True)],
    "chinese": [AddedToken("中"), AddedToken("a中b", normalized=False)],
    "marks": [AddedToken("a\u0301"), AddedToken("\u0301", normalized=False)],
}
PARTS = st.one_of(
    CHARS,
    st.builds("".join, st.lists(CHARS, max_size=6)),
    st.builds(lambda char, count: char * count, CHARS, st.integers(2, 300)),
    st.builds(
        lambda word, count: word * count, st.text(st.sampled_from(LETTERS), min_size=2, max_size=4), st.integers(2, 80)
    ),
    st.sampled_from("[SEP] [SEP SEP] [MASK] [sep] [[SEP]] <e1> <e 1> ca-t Ae.a <l> a.b".split()),
    st.sampled_from(["a b", ". .", " <l> "]),
    st.sampled_from(["the cats", "the cats, a b. ", "क्षि", "👨\u200d👩\u200d👧", "สวัสดี", "각한", " "]),
)
TEXTS = st.builds("".join, st.lists(PARTS, max_size=12))


def make(flags=(True, True, None, True), added=(), max_chars=100, pre_tokenizer=None):
    backend = build_tokenizer(VOCAB)
    clean, chinese, accents, lowercase = flags
    backend.normalizer = tokenizers.normalizers.BertNormalizer(clean, chinese, accents, lowercase)
    backend.pre_tokenizer = pre_tokenizer or tokenizers.pre_tokenizers.BertPreTokenizer()
    model = backend.model
    model.max_input_chars_per_word = max_chars
    backend.model = model
    backend.add_tokens(list(added))
    return Tokenizer(backend)


def words_of(text, encoding):
    """Return the words of an encoding by word id, each with the combining marks that follow it."""
    bounds, previous = [], None
    for word, (start, end) in zip(encoding.word_ids, encoding.offsets, strict=True):
        if word == previous:
            start, _ = bounds.pop()
        bounds.append((start, end))
        previous = word
    limits = [*(start for start, _ in bounds), len(text)][1:]
    found = []
    for (start, end), limit in zip(bounds, limits, strict=True):
        while end < limit and text[end] >= "\u0300" and unicodedata.category(text[end]).startswith("M"):
            end += 1
        found.append((start, end))
    return found


def assert_equal_to_whole(tokenizer, text):
    """Check that ids, offsets, words and counts equal those of the whole text."""
    whole = tokenizer.backend.encode_batch([text], add_special_tokens=False)[0]
    (tokens,), (ids_only,) = tokenizer.tokenize([text]), tokenizer.tokenize([text], ids_only=True)
    (kept,) = tokenizer.tokenize([text], max_ids=3)

    assert tokens.ids.tolist() == ids_only.ids.tolist() == whole.ids
    assert [tuple(pair) for pair in tokens.offsets.tolist()] == whole.offsets
    if _splitter.can_split(tokenizer.backend):  # others get the words of BERT, see test_tokenizer_kinds.py
        assert list(map(tuple, tokenizer.word_offsets(text).tolist())) == words_of(text, whole)
    assert (kept.ids.tolist(), len(kept), kept.is_complete) == (whole.ids[:3], len(whole.ids), True)
    assert kept.offsets.tolist() == [list(pair) for pair in whole.offsets[:3]]


HARD = [
    *("a" * 200 + "b" * 200, "A" * 120 + "Bb" + "a" * 120, "中a" * 20, "_a" * 20, ".a中" * 20, "‿a" * 20),
    *("[SEP" * 50, "[[[SEP]" * 20, "[SEP]" * 30, "[" * 100, "[S\x00EP]" * 9, "[S" + "\u200b" * 50 + "EP]"),
    *("A" + "\u200b" * 50 + "e.a", " " * 50 + "<l>" + " " * 50 + ".", "a.b" + "\u3000 " * 20 + "a", "<l> " * 20),
    *("\x00" * 300 + "a" + "\x00" * 300, "a" + "\u0301" * 500 + "b", ".\u0301" * 90, "a\x00\x00" * 130, "\u0301" * 300),
    *(
        "a" + "\u302e\u0323" * 100 + "b",
        "\u302e" * 300,
        "a" + "\u0f73\u0f71" * 99,
        ". ." * 30,
        "İ" * 200,
        "É" * 300,
        "",
    ),
    *("각" * 150, "🙂" * 300, "ก\u0e31" * 200, "कि" * 150, "か\u3099" * 150),
    *("\U0001d165" * 300, "\u0344" * 99, " " * 300),
    *("\t\n\r\u2028" * 40, "x" * 100 + " " + "x" * 101 + "." + "x" * 5000),
    *("x" * 99 + "\u200b" * 99 + "x", "x" * 100 + "\u200b" * 99 + "x"),
]


@pytest.mark.parametrize("added", ADDED.values(), ids=ADDED)
@pytest.mark.parametrize("flags", [FLAGS[0], FLAGS[-1]])
def test_hard_texts_in_pieces_equal_the_whole(short_pieces, added, flags):
    """Pieces give the same tokens for endless words, marks and controls, and for added tokens at each cut."""
    tokenizer = make(flags, added)

    for text in HARD:
        assert_equal_to_whole(tokenizer, text)


@settings(max_examples=75, suppress_health_check=list(HealthCheck))
@given(
    text=TEXTS,
    added=st.sampled_from(sorted(ADDED)),
    flags=st.sampled_from(FLAGS),
    max_chars=st.sampled_from([0, 3, 100]),
)
def test_any_text_in_pieces_equals_the_whole(short_pieces, text, added, flags, max_chars):
    """Pieces give the same tokens for any text, normalizer and added tokens."""
    assert_equal_to_whole(make(flags, ADDED[added], max_chars), text)


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(TEXTS, max_size=6), max_ids=st.integers(0, 9), stop_after=st.integers(0, 9))
def test_texts_beside_each_other(short_pieces, texts, max_ids, stop_after):
    """Each of several texts is read until it has more than `stop_after` tokens, and the first `max_ids` are kept."""
    tokenizer = make()

    for text, tokens in zip(texts, tokenizer.tokenize(texts, max_ids=max_ids, stop_after=stop_after), strict=True):
        whole = tokenizer.backend.encode(text, add_special_tokens=False)
        assert tokens.ids.tolist() == whole.ids[: min(max_ids, len(tokens))]
        assert stop_after < len(tokens) <= len(whole.ids) if not tokens.is_complete else len(tokens) == len(whole.ids)


@pytest.mark.parametrize(
    "change",
    [
        lambda backend: setattr(backend, "pre_tokenizer", tokenizers.pre_tokenizers.Whitespace()),
        lambda backend: setattr(backend, "pre_tokenizer", tokenizers.pre_tokenizers.WhitespaceSplit()),
        lambda backend: setattr(backend, "normalizer", tokenizers.normalizers.NFKC()),
        lambda backend: setattr(backend, "normalizer", tokenizers.normalizers.Replace(". ", "")),
        lambda backend: setattr(backend, "model", tokenizers.models.WordLevel(backend.get_vocab(), unk_token="[UNK]")),
        lambda backend: setattr(backend, "post_processor", tokenizers.processors.ByteLevel()),
    ],
)
def test_other_tokenizers_are_not_cut(short_pieces, change):
    """The splitter for BERT refuses other tokenizers, and their tokens are those of the whole text."""
    backend = build_tokenizer(VOCAB)
    change(backend)
    tokenizer = Tokenizer(backend)

    assert not _splitter.can_split(backend)
    for text in ("the cats, a b. " * 9, "..,, " * 20, "\u2460 \ufb01 " * 9):
        assert_equal_to_whole(tokenizer, text)


LONG = {
    "full stops": "." * 40_000,
    "one word": "a" * 40_000,
    "marks": "a" + "\u0301" * 40_000,
    "controls": "\x00" * 40_000,
    "Chinese": "中" * 40_000,
    "special tokens": "[SEP]" * 8_000,
    "half a special token": "[SEP" * 10_000,
    "spaces": " " * 40_000,
    "prose": "the cats, a b. " * 3000,
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_no_piece_is_long(text, assert_short_batches):
    """At most a few thousand characters are tokenized at a time."""
    tokenizer = make()

    tokens = assert_short_batches(tokenizer, text)

    assert tokens.ids.tolist() == tokenizer.backend.encode_batch([text], add_special_tokens=False)[0].ids


def test_no_more_is_read_than_is_needed():
    """A text is not read much beyond `stop_after`, and progress counts the kept tokens."""
    finished = []
    (tokens,) = make().with_progress(finished.append).tokenize(["a. " * 300_000], max_ids=8, stop_after=8)

    assert not tokens.is_complete
    assert sum(finished) == len(tokens.ids) == 8
    assert 8 < len(tokens) < 20_000
