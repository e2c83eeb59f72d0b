"""Tests of the fast sentence encoder: it gives the ids of the tokenizers library for any text."""

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import BertTokenizerFast

from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import build_tokenizer
from training.text.sentence_encoder import SentenceEncoder, splits_at_spaces

CHARACTERS = [
    *"aebcé中ßİΣςﬁ가각Å;,.'-[]#😀",
    *"\u0301\u0327\u0338\u037e\u1fef\u200b\u200d",
    *"  \u00a0\u3000\u2028\x85\x1c\t\r\0\ufffd\ufeff",
]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"aebcß中;,.'-[]#", "##a", "##e", "##b", "##c", "ab", "##ce"]
nasty = st.lists(
    st.lists(st.one_of(st.sampled_from([*CHARACTERS, "[MASK]", "[SEP]", "ab"]), st.characters(codec="utf-8"))).map(
        "".join
    )
)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False])
@given(texts=nasty)
@example(texts=["a \u0301b", "= \u0338", "[ MASK]", "a[MASK]b", "x" * 101, "a" * 101, "", " ", "a  b "])
def test_ids_are_those_of_the_tokenizer(texts, lowercase, strip_accents):
    """The ids equal the tokenizer's, also for combining marks, controls, odd spaces, special tokens and long words."""
    tokenizer = Tokenizer(build_tokenizer(VOCAB, lowercase=lowercase, strip_accents=strip_accents))
    encoder = SentenceEncoder(tokenizer)

    assert splits_at_spaces(tokenizer.backend)
    for ids, expected in zip(encoder.encode(texts), tokenizer.tokenize(texts), strict=True):
        assert ids.tolist() == expected.ids.tolist()


def test_ids_are_those_of_transformers(tokenizer_dir, text_file):
    """The ids equal those of BertTokenizerFast with the same vocabulary."""
    sentences = text_file.read_text().split("\n")
    peer = BertTokenizerFast.from_pretrained(tokenizer_dir)
    encoder = SentenceEncoder(Tokenizer.load(tokenizer_dir))

    assert [ids.tolist() for ids in encoder.encode(sentences)] == [
        peer.encode(sentence, add_special_tokens=False) for sentence in sentences
    ]


def test_tokens_over_spaces_are_left_to_the_library():
    """The encoder leaves tokens that contain spaces, and other tokenizers, to the library."""
    backend = build_tokenizer([*VOCAB, "a b"])
    backend.add_tokens(["a b"])
    ids = SentenceEncoder(Tokenizer(backend)).encode(["c a b c"])[0]
    assert ids.tolist() == [VOCAB.index("c"), len(VOCAB), VOCAB.index("c")]

    chinese = build_tokenizer(VOCAB)
    chinese.add_tokens([tokenizers.AddedToken("a中", normalized=True)])
    assert not splits_at_spaces(chinese)

    other = build_tokenizer(VOCAB)
    other.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    assert not splits_at_spaces(other)


def test_large_vocabularies_take_four_bytes():
    """Ids above 65,535 are stored in four bytes."""
    vocab = [*VOCAB, *(f"t{number}" for number in range(70_000))]
    encoder = SentenceEncoder(Tokenizer(build_tokenizer(vocab)))

    assert encoder.encode(["t69999 a"])[0].tolist() == [len(vocab) - 1, vocab.index("a")]
    assert encoder.id_type == np.uint32
