"""Tokenizers with small vocabularies."""

import string

import pytest

from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import build_tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = (
    string.ascii_letters
    + string.digits
    + "éÉüßøñçåÅαΑςσЖжאבשלוםمرحبا中文博推日本語ハあ각각👍🙂ñ\u1100\u1161\u11a8\u0301\u0308\u05b0"
)
WORDS = ["un", "want", "hello", "how", "are", "you", "mask", "##want", "##ed", "runn", "##ing", "##llo"]
CHARACTERS = list(dict.fromkeys(LETTERS))
VOCAB = [*SPECIALS, *string.punctuation, "«", "、", "¿", *CHARACTERS, *(f"##{c}" for c in CHARACTERS), *WORDS]
VOCAB = list(dict.fromkeys(VOCAB))


@pytest.fixture(scope="session")
def vocab():
    return VOCAB


@pytest.fixture(scope="session")
def tokenizer():
    """Uncased tokenizer of single characters and a few words."""
    return Tokenizer(build_tokenizer(VOCAB))


@pytest.fixture(scope="session")
def word_tokenizer():
    """Tokenizer with one token for each of the words w0 to w199."""
    return Tokenizer(build_tokenizer([*SPECIALS, *(f"w{index}" for index in range(200))]))
