"""Tokens that continue the word of the token before them, for tokenizers of any kind.

WordPiece marks such tokens (`##ing`). Byte-level BPE and SentencePiece mark the space before a word, and older BPE its
end (`</w>`); a letter may be several tokens of a byte each. So the text of the tokens decides: a word is a run of
letters and digits, and each character of a script without spaces is a word.
"""

from __future__ import annotations

import functools
import re
import unicodedata

import numpy as np
import tokenizers

from tasks.text.languages import is_unspaced

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(0x100) if byte not in _PRINTABLE]
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(0x100 + rank): byte for rank, byte in enumerate(_OTHERS)}
"""Characters of byte-level BPE -> bytes. Source: `bytes_to_unicode` of openai/gpt-2."""
_FALLBACK = re.compile("<0x([0-9A-F]{2})>")
"""Byte of a character that a SentencePiece model lacks."""
_NOT_A_WORD = b"\0"
"""Text of special tokens and of ids without a token."""
_JOINERS = "\u200c\u200d"
"""Invisible characters inside words of Persian and of Indian languages."""


class WordPieces:
    """Tokens that continue words, for one tokenizer."""

    def __init__(self, backend: tokenizers.Tokenizer, vocab_size: int) -> None:
        """Read the vocabulary.

        Args:
            vocab_size: highest id plus one.
        """
        prefix = getattr(backend.model, "continuing_subword_prefix", None) or ""
        tokens = [backend.id_to_token(index) or "" for index in range(vocab_size)]
        self._continues: np.ndarray | None = None
        """[vocabulary] bool, where the token alone decides."""
        if prefix or isinstance(backend.model, tokenizers.models.WordLevel):
            self._continues = np.array([prefix != "" and token.startswith(prefix) for token in tokens])
            tokens = [token.removeprefix(prefix) for token in tokens]
        parts = (backend.normalizer, backend.pre_tokenizer, backend.decoder)
        is_byte_level = any(part is not None and b'"ByteLevel"' in part.__getstate__() for part in parts)
        suffix, added = getattr(backend.model, "end_of_word_suffix", None), backend.get_added_tokens_decoder()
        self._texts = [
            _NOT_A_WORD if index in added or not token else _text_of(token, suffix or "", is_byte_level)
            for index, token in enumerate(tokens)
        ]
        """Text of each token in UTF-8, a part of a letter for some."""

    def continues(self, ids: np.ndarray) -> np.ndarray:
        """Return which tokens of a sequence continue the word of the token before them: [length] bool."""
        if self._continues is not None:
            return self._continues[ids]
        text, first, is_inside = self.characters(ids)
        is_letter = np.fromiter(map(_is_letter, text), bool, len(text))
        is_bare_space = np.array([self._texts[index] == b" " for index in ids.tolist()], bool)
        joins = is_letter[first - 1] | np.roll(is_bare_space, 1)
        continues = is_inside | (is_letter[first] & joins)
        continues[:1] = False
        return continues

    def characters(self, ids: np.ndarray) -> tuple[str, np.ndarray, np.ndarray]:
        """Return the characters of a sequence, and where its tokens begin.

        Returns:
            The text; the number of the character in which each token begins, [length] int64; and whether the token
            begins inside of it, [length] bool.
        """
        texts = [self._texts[index] for index in ids.tolist()]
        text = b"".join(texts).decode("utf-8", "surrogateescape")
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        is_stray = (codes >= 0xD800) & (codes < 0xE000)  # a byte of a letter that was cut
        sizes = np.where(is_stray, 1, 1 + (codes > 0x7F) + (codes > 0x7FF) + (codes > 0xFFFF))
        ends = np.cumsum(sizes)
        starts = np.cumsum([0, *map(len, texts)])[:-1]
        first = np.searchsorted(ends, starts, side="right")
        return text, first, starts > ends[first] - sizes[first]


def _text_of(token: str, suffix: str, is_byte_level: bool) -> bytes:
    text, ending = token.removesuffix(suffix), " " if suffix and token.endswith(suffix) else ""
    if is_byte_level and all(char in _BYTES for char in text):
        return bytes(map(_BYTES.__getitem__, text)) + ending.encode()
    if byte := _FALLBACK.fullmatch(token):
        return bytes.fromhex(byte[1])
    return f"{text}{ending}".replace("▁", " ").encode()


@functools.lru_cache(2**16)
def _is_letter(char: str) -> bool:
    """Return whether a character continues a word behind another one."""
    is_part = char.isalnum() or char in _JOINERS or unicodedata.category(char)[0] == "M"
    return is_part and not is_unspaced(char)
