"""Tokenizers with small vocabularies."""

import string

import pytest

from tasks.text import _space_splitter, _splitter
from tasks.text import tokenizer as tokenizer_module
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


@pytest.fixture
def short_pieces(monkeypatch):
    """Set pieces to a few characters, so that short texts have many."""
    for module in (_splitter, _space_splitter, tokenizer_module):
        monkeypatch.setattr(module, "PIECE_CHARS", 6)
    monkeypatch.setattr(tokenizer_module, "SMALL_TEXT_CHARS", 3)
    monkeypatch.setattr(tokenizer_module, "BATCH_CHARS", 25)


@pytest.fixture
def assert_short_batches(monkeypatch):
    """Return a function that tokenizes a text, and checks that no call of the backend gets many characters."""
    sizes, encode = [], Tokenizer._encode

    def recorded(self, texts, *, ids_only):
        sizes.append(sum(map(len, texts)))
        return encode(self, texts, ids_only=ids_only)

    def tokenize(tokenizer, text):
        monkeypatch.setattr(Tokenizer, "_encode", recorded)
        (tokens,) = tokenizer.tokenize([text])
        monkeypatch.setattr(Tokenizer, "_encode", encode)
        assert 0 < max(sizes) <= tokenizer_module.BATCH_CHARS + _splitter.PIECE_CHARS
        return tokens

    return tokenize
