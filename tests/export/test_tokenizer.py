from __future__ import annotations

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.text.tokenizer import Tokenizer

ODD_TEXTS = [
    "",
    "  \t\n",
    "UNwanted,running",
    "Héllo É A\u0301",
    "ah博推zz",
    "a\u00a0b\u2028c\u0000d\ufffde",
    "don't-stop…[MASK] [SEP]x",
    "x" * 150,
    "🙂🙂 the",
    "ﬁﬂ İSTANBUL ß",
]


@pytest.fixture(scope="module")
def tokenizer_pairs(tmp_path_factory, vocab):
    """Return our tokenizer and transformers' for the same `vocab.txt`, uncased and cased."""
    pairs = []
    vocab = [*vocab[:5], "\u2028", "\x85", *vocab[5:]]  # some published vocabularies hold such tokens
    for lowercase in (True, False):
        directory = tmp_path_factory.mktemp("tokenizer")
        (directory / "vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")
        (directory / "tokenizer_config.json").write_text(f'{{"do_lower_case": {str(lowercase).lower()}}}')
        theirs = transformers.BertTokenizerFast(vocab_file=str(directory / "vocab.txt"), do_lower_case=lowercase)
        pairs.append((Tokenizer.load(directory), theirs))
    return pairs


def check_tokens(pairs, text):
    for ours, theirs in pairs:
        expected = theirs(text, return_offsets_mapping=True, add_special_tokens=False)
        tokens = ours.tokenize([text])[0]

        assert tokens.ids.tolist() == expected["input_ids"]
        assert tokens.offsets.tolist() == [list(item) for item in expected["offset_mapping"]]


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_tokens_of_odd_texts_equal_those_of_transformers(tokenizer_pairs, text):
    """Ids and offsets are equal for control characters, accents, CJK, special tokens and long words."""
    check_tokens(tokenizer_pairs, text)


@settings(max_examples=150)
@given(text=st.text(max_size=40))
def test_tokens_of_any_text_equal_those_of_transformers(tokenizer_pairs, text):
    """Ids and offsets are equal for any text."""
    check_tokens(tokenizer_pairs, text)
