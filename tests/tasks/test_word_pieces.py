"""Tokens that continue words, compared with the words that the `regex` module finds in the text."""

import functools
import unicodedata

import numpy as np
import regex
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from tasks.text.languages import UNSPACED
from tasks.text.tokenizer import Tokenizer
from tasks.text.word_pieces import WordPieces
from tests.toy_tokenizers import KINDS, train_byte_bpe

ALPHABET = "aeTh \n1.,'_(-é北京るไทยမြန် Ж\u0301िक\u093f🦉ø…\u200dĠĊ▁"
WORD = regex.compile(rf"[[\p{{L}}\p{{N}}\p{{M}}\u200c\u200d]--[{UNSPACED}]]+", regex.VERSION1)


def split_then_bytes():
    """Return byte-level BPE whose words come from a pattern, as in newer models."""
    backend = tokenizers.Tokenizer(models.BPE())
    pattern = tokenizers.Regex(r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+")
    split = pre_tokenizers.Split(pattern, "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    train_byte_bpe(backend, ["<mask>"], 400)
    return backend


def bytes_with_endings():
    """Return byte-level BPE with a mark at the end of words, as of CLIP."""
    known = [f"{char}{ending}" for char in sorted(pre_tokenizers.ByteLevel.alphabet()) for ending in ("", "</w>")]
    vocab = {token: index for index, token in enumerate([*known, "Th", "Ð¶</w>"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [("T", "h"), ("Ð", "¶</w>")], end_of_word_suffix="</w>"))
    pattern = tokenizers.Regex(r"[\p{L}\p{M}\p{N}\u200d]+|[^\s\p{L}\p{M}\p{N}\u200d]")
    words = pre_tokenizers.Split(pattern, "removed", invert=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(False, use_regex=False)])
    return backend


def byte_fallback():
    """Return BPE of SentencePiece, with a token for each byte of an unknown character."""
    known = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"aeTh1.,é", "▁a", "Th"]
    vocab = {token: index for index, token in enumerate(known)}
    backend = tokenizers.Tokenizer(
        models.BPE(vocab, [("▁", "a"), ("T", "h")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


MORE = {kind.__name__: kind for kind in (split_then_bytes, bytes_with_endings, byte_fallback)}
NAMES = ("byte_bpe", "modernbert", *MORE)
made = functools.cache(lambda name: Tokenizer((KINDS | MORE)[name]()))


@given(st.sampled_from(NAMES), st.text(st.sampled_from(ALPHABET), max_size=30))
@example("byte_bpe", "Жизнь прекрасна, hello\nworld (it's) ไทย naïve क्षि")
def test_tokens_of_a_word_continue_it(name, text):
    """A token continues a word if it begins inside a character, or inside a run of letters, digits and marks."""
    tokenizer, text = made(name), unicodedata.normalize("NFC", text)
    encoding = tokenizer.backend.encode(text, add_special_tokens=False)
    inside = np.zeros(len(text) + 1, bool)
    for word in WORD.finditer(text):
        inside[word.start() + 1 : word.end()] = True

    expected, bare, last_end = [], False, 0
    for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
        visible = start + (text[start:end].startswith(" ") and end > start + 1)
        after_space = bare and token not in ("Ġ", "▁") and WORD.match(text, start) is not None
        expected.append(after_space or bool(inside[visible]) or (not bare and last_end > start))
        bare, last_end = token in ("Ġ", "▁"), end

    assert tokenizer.continues_word(np.array(encoding.ids, np.int64)).tolist() == expected


def test_words_of_tokenizers_without_marks():
    """Each token of a vocabulary of words is a word; an id without a token and a special token are none."""
    backend = tokenizers.Tokenizer(models.WordLevel({"one": 0, "two": 1, "<unk>": 2}, unk_token="<unk>"))
    assert not WordPieces(backend, 4).continues(np.array([0, 1, 3, 0])).any()
    ids = np.array([made("byte_bpe").token_id(token) for token in ("a", "</s>", "b", "b")])

    assert made("byte_bpe").continues_word(ids).tolist() == [False, False, False, True]
