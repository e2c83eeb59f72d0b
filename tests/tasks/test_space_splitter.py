"""Long texts are split before spaces, with the same tokens as the whole text."""

import copy
import functools

import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers

from tasks.text.tokenizer import Tokenizer
from tests.hard_texts import CHARS
from tests.toy_sentencepiece import TRAINING, write
from tests.toy_tokenizers import KINDS, TEXT, byte_bpe, modernbert, unigram
from training.checkpoint.tokenizer import read_tokenizer

SPACES = [AddedToken(" " * count, normalized=True) for count in (2, 3, 8)]
"""Added tokens of ModernBERT."""
ADDED = [
    AddedToken("<New York>", normalized=False),
    AddedToken("<l>", lstrip=True),
    AddedToken("<r>", rstrip=True),
    AddedToken("cat", single_word=True),
]


def changed(backend, *, normalizer=None, pre_tokenizer=None, post_processor=None, added=()):
    """Return a tokenizer with other parts."""
    parts = {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": post_processor}
    for name, value in parts.items():
        if value is not None:
            setattr(backend, name, value)
    backend.add_tokens(list(added))
    return backend


def metaspace(scheme):
    return pre_tokenizers.Metaspace(prepend_scheme=scheme)


WHITESPACE = pre_tokenizers.WhitespaceSplit()
SPLIT = {
    "byte_bpe": byte_bpe,
    "byte_bpe, prefix": lambda: byte_bpe(add_prefix_space=True),
    "byte_bpe, prefix, offsets kept": lambda: byte_bpe(add_prefix_space=True, trim_offsets=False),
    "byte_bpe, added": lambda: changed(byte_bpe(), added=ADDED),
    "modernbert": lambda: changed(modernbert(), added=SPACES),
    "byte_bpe, NFKC": lambda: changed(byte_bpe(), normalizer=normalizers.NFKC()),
    "unigram": unigram,
    "unigram, first": lambda: changed(unigram(), pre_tokenizer=metaspace("first"), added=ADDED),
    "unigram, never": lambda: changed(unigram(), pre_tokenizer=metaspace("never")),
    "unigram, words": lambda: changed(
        unigram(), pre_tokenizer=pre_tokenizers.Sequence([WHITESPACE, metaspace("always")])
    ),
    "unigram, first of words": lambda: changed(
        unigram(), pre_tokenizer=pre_tokenizers.Sequence([WHITESPACE, metaspace("first")])
    ),
    "unigram, stripped": lambda: changed(
        unigram(), normalizer=normalizers.Sequence([normalizers.Strip(), normalizers.NFKD(), normalizers.Lowercase()])
    ),
    **{
        name: functools.partial(lambda name, path: read_tokenizer(write(path, name)).backend, name) for name in TRAINING
    },
    "DebertaV2, punctuation": lambda path: (
        read_tokenizer(
            write(path, "DebertaV2", tokenizer_config={"split_by_punct": True, "do_lower_case": True})
        ).backend
    ),
}
"""Tokenizers that are split."""
FAMILIES = {*TRAINING, "DebertaV2, punctuation"}
PARTS = st.one_of(
    CHARS,
    st.builds("".join, st.lists(CHARS, max_size=6)),
    st.builds("{} ".format, st.text(CHARS, min_size=1, max_size=3)),
    st.sampled_from(" | a| the| cat|. |, |'s | 's| 12|\n|\n\n|\r\n|\t|\u3000|\u00a0".split("|")),
    st.sampled_from("<mask>| <mask> |[MASK]|<s>|</s> |<New York>|<New |York>| <l>|<l> |  |   ".split("|")),
    st.sampled_from("\u0600 |e\u0301 | \u0301|👨\u200d👩 |\x00 | \u200b |▁| ▁ |क्ष |\u1100 \u1161|🇩🇪 ".split("|")),
    st.sampled_from(TEXT[:5]),
)
TEXTS = st.builds("".join, st.lists(PARTS, max_size=16))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Return a function that returns a tokenizer that splits texts, and the same that does not."""

    @functools.cache
    def load(name):
        backend = SPLIT[name](tmp_path_factory.mktemp("family")) if name in FAMILIES else SPLIT[name]()
        tokenizer = Tokenizer(backend)
        whole = copy.copy(tokenizer)
        whole._splitter = None
        return tokenizer, whole

    return load


def assert_equal_to_whole(tokenizer, whole, text):
    """Check that ids, offsets and counts equal those of the whole text.

    `Precompiled` loses characters that it removes at the start of a text, so that all offsets behind are too small. In
    pieces only those of the first one are.
    """
    (expected,), (tokens,) = whole.tokenize([text]), tokenizer.tokenize([text])
    (ids_only,) = tokenizer.tokenize([text], ids_only=True)
    assert tokens.ids.tolist() == ids_only.ids.tolist() == expected.ids.tolist()
    assert len(tokens) == len(expected)
    if not has_charsmap(tokenizer) or not has_removed_chars(tokenizer, text):
        np.testing.assert_array_equal(tokens.offsets, expected.offsets)
    offsets = [block.offsets for block in tokenizer.tokenize_blocks(text)]
    np.testing.assert_array_equal(np.concatenate([np.zeros((0, 2)), *offsets]), tokens.offsets)


@functools.cache
def has_charsmap(tokenizer):
    return "Precompiled" in repr(tokenizer.backend.normalizer)


def has_removed_chars(tokenizer, text):
    return any(tokenizer.backend.normalizer.normalize_str(f"a{char}a") == "aa" for char in text)


@settings(max_examples=75, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(sorted(SPLIT)), text=TEXTS)
def test_any_text_in_pieces_equals_the_whole(short_pieces, pairs, name, text):
    """Pieces give the same ids and offsets for any text."""
    assert_equal_to_whole(*pairs(name), text)


@pytest.mark.parametrize("name", SPLIT)
def test_every_character_beside_a_space(short_pieces, pairs, name):
    """Pieces give the same tokens whatever characters are next to the space."""
    tokenizer, whole = pairs(name)
    codes = [*range(0x20, 0x100), *range(0x600, 0x610), *range(0x2000, 0x2030)]
    chars = [*map(chr, codes), *"\u2581\u3000\ufeff\U0001f1e9"]
    parts = [f"ab{char} {char}cd" for char in chars]

    for first in range(0, len(parts), 20):
        assert_equal_to_whole(tokenizer, whole, "x ".join(parts[first : first + 20]))


@pytest.mark.parametrize("name", [name for name in SPLIT if "never" not in name])
def test_prose_is_split(name, pairs, assert_short_batches):
    """A long text is tokenized a few thousand characters at a time."""
    tokenizer, whole = pairs(name)
    text = "The old cat sees it. " * 1500
    (expected,) = whole.tokenize([text])

    tokens = assert_short_batches(tokenizer, text)

    assert tokens.ids.tolist() == expected.ids.tolist()
    np.testing.assert_array_equal(tokens.offsets, expected.offsets)


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": pre_tokenizers.ByteLevel(use_regex=False)},
        {"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel()])},
        {"pre_tokenizer": pre_tokenizers.Metaspace(split=False)},
        {"pre_tokenizer": pre_tokenizers.Metaspace(replacement="_")},
        {"normalizer": normalizers.Replace(" ", "▁")},
        {"normalizer": normalizers.Replace("x ", "y")},
        {"normalizer": normalizers.Replace(tokenizers.Regex("a "), "b")},
        {"normalizer": normalizers.Prepend("▁")},
        {"normalizer": normalizers.NFC(), "added": [AddedToken("New York", normalized=True)]},
        {"added": [AddedToken(f"a {number}") for number in range(40)]},
    ],
)
def test_tokenizers_that_need_the_whole_text(change):
    """A tokenizer whose words may span a space is not split."""
    assert Tokenizer(changed(byte_bpe(), **change))._splitter is None


def test_scheme_that_would_lose_the_space(short_pieces):
    """A normalizer that strips the space before a piece is not split if nothing puts it back."""
    backend = changed(unigram(), normalizer=normalizers.Strip(), pre_tokenizer=metaspace("never"))
    tokenizer = Tokenizer(backend)
    whole = copy.copy(tokenizer)
    whole._splitter = None

    assert next(iter(tokenizer._split("The old cat sees"))).text == "The old cat sees"
    assert_equal_to_whole(tokenizer, whole, "The old cat sees")


@pytest.mark.parametrize("kind", ["byte_bpe", "modernbert", "unigram"])
def test_early_end(kind, short_pieces):
    """A text is not read much beyond `stop_after`."""
    tokenizer = Tokenizer(KINDS[kind]())

    (tokens,) = tokenizer.tokenize(["the cat " * 300], max_ids=4, stop_after=4)

    assert not tokens.is_complete
    assert 4 < len(tokens) < 60
