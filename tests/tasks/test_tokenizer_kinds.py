"""Tokenizers of every kind: sequences, special tokens and offsets equal those of `tokenizers` and transformers."""

import functools
import json

import numpy as np
import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors

from tasks import create_task
from tasks.classification import Classification, ClassificationExample, ClassificationSettings
from tasks.masked_lm import MaskedLMSettings
from tasks.spans import SpanExample, Spans, SpanSettings
from tasks.tagging import Tagging, TaggingExample, TaggingSettings
from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import SPECIAL_TOKENS, build_tokenizer
from tests.toy_tokenizers import KINDS, TEXT, byte_bpe, wordpiece

made = functools.cache(lambda kind: KINDS[kind]())
TEXTS = st.text(st.sampled_from("aeTh 1.,é中北\u0301\u00a0\u3000ﬁ①🦉Я\n"), max_size=20)


@given(st.sampled_from(sorted(KINDS)), TEXTS, TEXTS)
def test_sequences_equal_those_of_the_library(kind, first, second):
    """A text, and a pair, get the special tokens and types that the tokenizer's own post-processor adds."""
    backend = made(kind)
    tokenizer = Tokenizer(backend)
    ids = [tokenizer.tokenize([text])[0].ids for text in (first, second)]

    for texts, sequence in [((first,), tokenizer.assemble(ids[0])), ((first, second), tokenizer.assemble(*ids))]:
        expected = backend.encode(*texts)
        assert sequence["input_ids"].tolist() == expected.ids
        assert sequence["token_type_ids"].tolist() == expected.type_ids


@given(st.sampled_from(sorted(KINDS)), TEXTS)
def test_offsets_are_code_points_without_the_space_before_a_word(kind, text):
    """Offsets lie inside the text, in order, and no token begins or ends with a space of the text."""
    tokenizer = Tokenizer(made(kind))

    tokens = tokenizer.tokenize([text])[0]

    for start, end in tokens.offsets:
        assert 0 <= start <= end <= len(text)
    assert (np.diff(tokens.offsets[:, 0]) >= 0).all()
    found = [text[start:end] for start, end in tokens.offsets]
    assert not [part for part in found if part.strip(" ") and part != part.strip(" ")]


@pytest.mark.parametrize(
    ("kind", "pad", "unknown", "mask"),
    [
        ("wordpiece", "[PAD]", "[UNK]", "[MASK]"),
        ("mpnet", "<pad>", "[UNK]", "<mask>"),
        ("byte_bpe", "<pad>", "<unk>", "<mask>"),
        ("modernbert", "[PAD]", "[UNK]", "[MASK]"),
        ("unigram", "<pad>", "<unk>", "<mask>"),
        ("deberta", "[PAD]", "[UNK]", "[MASK]"),
    ],
)
def test_special_tokens_by_role(kind, pad, unknown, mask):
    """Padding, unknown words and masks have the names of the tokenizer's family."""
    tokenizer = Tokenizer(made(kind))

    found = [tokenizer.token(token_id) for token_id in (tokenizer.pad_id, tokenizer.unk_id, tokenizer.mask_id)]
    assert found == [pad, unknown, mask]


def save(backend, path, config=None, names=None):
    """Write the files of a tokenizer."""
    backend.save(str(path / "tokenizer.json"))
    for file, values in (("tokenizer_config.json", config), ("special_tokens_map.json", names)):
        if values is not None:
            (path / file).write_text(json.dumps(values))
    return path


def test_checkpoint_names_its_special_tokens(tmp_path):
    """Names in the files of a checkpoint count before the usual ones; they are strings or objects."""
    backend = wordpiece()
    backend.add_special_tokens(["<filler>", "<blank>"])
    config = {"mask_token": {"content": "<blank>", "lstrip": True}}

    tokenizer = Tokenizer.load(save(backend, tmp_path, config, {"pad_token": "<filler>", "mask_token": "[MASK]"}))

    assert [tokenizer.token(tokenizer.pad_id), tokenizer.token(tokenizer.mask_id)] == ["<filler>", "<blank>"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"mask_token": "<blank>"}, r"tokenizer\.json` lacks its mask_token, `<blank>`"),
        ({"pad_token": 7}, r"tokenizer_config\.json`: `pad_token` must be a token, not `7`"),
    ],
)
def test_wrong_names_of_special_tokens(config, message, tmp_path):
    """A name that is no token of the vocabulary is refused, with the file."""
    with pytest.raises(ValueError, match=message):
        Tokenizer.load(save(wordpiece(), tmp_path, config))


NEW = {"content": "<new>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}


@pytest.mark.parametrize(
    ("config", "added"),
    [
        *(({"add_prefix_space": flag}, None) for flag in (False, True)),
        *(({"split_special_tokens": flag}, None) for flag in (False, True)),
        *(({"added_tokens_decoder": {str(number): NEW}}, None) for number in (9, 999)),
        *(({key: ["<new>"]}, None) for key in ("additional_special_tokens", "extra_special_tokens")),
        ({"extra_special_tokens": {"extra_token": "<new>"}}, None),
        ({"added_tokens_decoder": {}}, {"<new>": 999}),
        ({}, {"<new>": 999}),
    ],
)
@pytest.mark.parametrize("kind", ["byte_bpe", "wordpiece", "unigram"])
def test_files_beside_the_tokenizer_must_agree(kind, config, added, tmp_path):
    """Text has the tokens of transformers, or the file that changes them is named."""
    save(made(kind), tmp_path, {"tokenizer_class": "PreTrainedTokenizerFast", **config})
    if added:
        (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    text = "The<new> old <mask>[MASK]cat"
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"]
    except AttributeError:  # transformers 4 has names for extra tokens, transformers 5 a list
        theirs = []

    if theirs == made(kind).encode(text).ids:
        assert Tokenizer.load(tmp_path).backend.encode(text).ids == theirs
    else:
        with pytest.raises(ValueError, match=rf"({'|'.join([*config, 'added_tokens'])})"):
            Tokenizer.load(tmp_path)


def test_tokenizer_without_masks_cannot_fill_masks(tmp_path):
    """A tokenizer without a mask token serves other tasks; masked-lm is refused."""
    backend = tokenizers.Tokenizer.from_str(wordpiece().to_str().replace("[MASK]", "[mask]"))
    tokenizer = Tokenizer(backend)

    assert Classification(tokenizer, ClassificationSettings(labels=("a", "b"))).encode([ClassificationExample("cat")])
    with pytest.raises(ValueError, match="no mask token, so this model cannot do `masked-lm`"):
        create_task("masked-lm", tokenizer, MaskedLMSettings())


@pytest.mark.parametrize(
    "template",
    [
        {"single": "$A [SEP] $A", "pair": "$A $B"},
        {"single": "[CLS] $A", "pair": "[CLS] $B [SEP] $A"},
    ],
)
def test_templates_that_move_texts_are_refused(template):
    """A template that repeats or swaps texts is refused: positions and windows would be wrong."""
    backend = wordpiece()
    backend.post_processor = processors.TemplateProcessing(**template, special_tokens=[("[CLS]", 2), ("[SEP]", 3)])

    with pytest.raises(ValueError, match="post-processor of `tokenizer` does not keep the texts in order"):
        Tokenizer(backend)


def test_special_tokens_outside_the_vocabulary_are_refused():
    """A post-processor that adds an id without a token is an error."""
    backend = wordpiece()
    backend.post_processor = processors.BertProcessing(("[SEP]", 70_000), ("[CLS]", 2))

    with pytest.raises(ValueError, match=r"post-processor of `tokenizer` adds the id `70000`, which is no token"):
        Tokenizer(backend)


def test_without_separator_no_special_tokens_are_added():
    """A file with `[CLS]`, but neither `[SEP]` nor a post-processor, adds nothing, as the library."""
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[CLS]": 0, "a": 1, "1": 2, ".": 3}, unk_token="."))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()

    assert Tokenizer(backend).assemble(np.array([1]), np.array([2, 3]))["input_ids"].tolist() == [1, 2, 3]


def test_tokens_at_random_are_refused(tmp_path):
    """BPE dropout, which makes tokenization random, is an error; without effect it is none."""
    backend = byte_bpe()
    backend.model.dropout = 0.0
    assert Tokenizer.load(save(backend, tmp_path)).vocab_size == backend.get_vocab_size()
    backend.model.dropout = 0.25

    with pytest.raises(ValueError, match=r"tokenizer\.json` has a dropout of `0.25` for BPE"):
        Tokenizer.load(save(backend, tmp_path))


def test_vocabulary_without_post_processor_is_berts():
    """A file with `[CLS]` and `[SEP]` but no post-processor gets BERT's special tokens."""
    backend = wordpiece()
    backend.post_processor = None

    sequence = Tokenizer(backend).assemble(np.array([7]), np.array([8, 9]))

    assert sequence["input_ids"].tolist() == [2, 7, 3, 8, 9, 3]
    assert sequence["token_type_ids"].tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_answers_are_spans_of_the_context(kind):
    """Each token of the context in a window has its offsets, in any template of pairs."""
    task = Spans(Tokenizer(made(kind)), SpanSettings(max_seq_length=40, doc_stride=8, max_query_length=8))
    context = " ".join(TEXT[:2])

    windows = task.encode([SpanExample("sees the house", context)])[0]

    whole = task.tokenizer.tokenize([context])[0]
    for window in windows:
        assert len(window.input_ids) <= 40
        offsets = window.offsets[window.in_context].tolist()
        first = whole.offsets.tolist().index(offsets[0])
        assert whole.offsets[first : first + len(offsets)].tolist() == offsets
        assert whole.ids[first : first + len(offsets)].tolist() == window.input_ids[window.in_context].tolist()


@pytest.mark.parametrize("names", [["spiece.model"], ["vocab.json", "merges.txt"]])
def test_files_to_convert_are_refused_with_a_remedy(names, tmp_path):
    """A directory whose tokenizer must be converted is refused with how to get `tokenizer.json`."""
    for name in names:
        (tmp_path / name).write_bytes(b"")

    with pytest.raises(ValueError, match="read only by training and export, which convert it; save the tokenizer"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_words_have_the_tokens_of_transformers(kind):
    """A list of words becomes the sequence that transformers makes of it for tagging."""
    task = Tagging(Tokenizer(made(kind)), TaggingSettings(labels=("O", "B-A"), max_seq_length=64))
    words = ("The", "old", "cat", ",", "Häuser", "北京", "a.b@c.org", "x")
    copied = tokenizers.Tokenizer.from_str(made(kind).to_str())
    reference = transformers.PreTrainedTokenizerFast(tokenizer_object=copied, add_prefix_space=True)

    window = task.encode([TaggingExample(words=words)])[0][0]

    expected = reference(list(words), is_split_into_words=True)
    assert window.input_ids.tolist() == expected["input_ids"]
    ids = expected.word_ids()
    assert window.positions.tolist() == [ids.index(number) for number in range(len(words))]


@given(st.sampled_from(["byte_bpe", "modernbert", "unigram"]), TEXTS)
def test_running_text_is_divided_into_berts_words(kind, text):
    """Every tokenizer divides running text into the same words, so that tags do not depend on it."""
    expected = Tokenizer(build_tokenizer(SPECIAL_TOKENS, lowercase=False)).word_offsets(text)

    np.testing.assert_array_equal(Tokenizer(made(kind)).word_offsets(text), expected)
