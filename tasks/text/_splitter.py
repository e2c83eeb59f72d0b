"""Split long texts into pieces that BERT's tokenizers turn into the same tokens.

`BertNormalizer` treats each character by itself, and `BertPreTokenizer` ends a word at every space and punctuation
mark. So the tokens after such a character do not depend on the text before it, unless an added token ("[SEP]") spans
it. The backend itself classifies each character: there is no Unicode table here.

A word with more characters than the model takes becomes one unknown token. Its middle is left out, and so are long runs
of characters that the normalizer removes. This keeps pieces short; the offsets of their tokens still refer to the text.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tokenizers

PIECE_CHARS = 4096
"""Characters of a piece, where the text can be split. Tokenizing and converting one takes a few milliseconds."""

# Classes of characters. Texts are split after boundaries. The numbers are ordered: up to _PROTECTED_BOUNDARY, the text
# may be split after the character; up to _WORD_END, the character ends a word.
_UNCLASSIFIED = 0
_BOUNDARY = 1
"""Space or punctuation mark: the text can be split after it."""
_PROTECTED_BOUNDARY = 2
"""The same, but it occurs inside an added token: the text can be split after it unless such a token is there."""
_WORD_END = 3
"""Ends a word, but the text is never split after it."""
_OTHER = 4
"""None of the other classes. A word with such a character is never shortened."""
_WORD = 5
"""_WORD + n is part of a word, and the normalizer turns it into n characters."""

_MAX_ADDED_PER_CHAR = 256
"""Maximum number of added tokens with the same character. If more have it, a text is never split after it."""
_MAX_BOUNDARIES = 32
"""Maximum number of boundaries of a piece to check for an added token, the last ones first."""
_MAX_MARGIN = 64
"""Long words are shortened only if `_margin` is at most this many characters."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a text."""

    text: str
    start: int
    """Position of its first character in the text."""
    positions: np.ndarray | None = None
    """Position of each character relative to `start`, [characters] int64; None if nothing was left out."""

    def to_text_offsets(self, offsets: np.ndarray) -> np.ndarray:
        """Convert offsets in the piece, [tokens, 2], to offsets in the text."""
        if self.positions is not None and len(offsets):
            offsets = np.stack([self.positions[offsets[:, 0]], self.positions[offsets[:, 1] - 1] + 1], axis=1)
        return offsets + self.start


class TextSplitter:
    """Splits texts for one tokenizer."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Prepare the splitter for a tokenizer that `can_split` accepts."""
        self._normalizer, self._pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        self._classes = np.zeros(0x110000, np.uint8)
        self._classes[0xD800:0xE000] = _OTHER  # halves of surrogate pairs, which the backend refuses
        self._longest_word = backend.model.max_input_chars_per_word
        added = list(backend.get_added_tokens_decoder().values())
        self._ascii_only = any(token.single_word for token in added)
        self._not_at_spaces = any(token.lstrip or token.rstrip for token in added)
        self._added_by_char: dict[str, list[str] | None] = {}
        """Character -> added tokens with it before their last character; None if a text is never split after it."""
        for token in added:
            self._register(token)
        self._margin = 1 + max((len(token.content) for token in added), default=0)
        self._shortens_words = self._margin <= _MAX_MARGIN and not any(map(self._can_be_inside_word, added))

    def _register(self, token: tokenizers.AddedToken) -> None:
        if token.normalized or token.lstrip or token.rstrip or token.single_word:
            normalized = self._normalize(token.content) if token.normalized else ""
            self._added_by_char.update(dict.fromkeys(token.content + normalized))
            return
        for char in set(token.content[:-1]):
            known = self._added_by_char.setdefault(char, [])
            if known is not None:
                known.append(token.content)
                if len(known) > _MAX_ADDED_PER_CHAR:
                    self._added_by_char[char] = None

    def _can_be_inside_word(self, token: tokenizers.AddedToken) -> bool:
        """Return whether no character of an added token ends a word."""
        contents = [token.content, self._normalize(token.content)] if token.normalized else [token.content]
        return any((self._classify(content) > _WORD_END).all() for content in contents)

    def _normalize(self, text: str) -> str:
        return text if self._normalizer is None else str(self._normalizer.normalize_str(text))

    def split(self, text: str) -> Iterator[Piece]:
        """Split a text. The tokens of its pieces, in order, equal the tokens of the text."""
        start = 0
        while start < len(text):
            end, classes = self._find_end(text, start)
            positions = self._kept_positions(classes) if classes is not None else None
            if positions is None:
                yield Piece(text[start:end], start)
            else:
                yield Piece("".join([text[start + position] for position in positions]), start, positions)
            start = end

    def _find_end(self, text: str, start: int) -> tuple[int, np.ndarray | None]:
        """Return the end of the piece that begins at `start`, and the classes of its characters if it is long."""
        if len(text) - start <= PIECE_CHARS:
            return len(text), None
        classes = self._classify(text[start : start + PIECE_CHARS])
        boundaries = np.flatnonzero(classes <= _PROTECTED_BOUNDARY)
        for index in reversed(boundaries[-_MAX_BOUNDARIES:]):
            if self._is_outside_added_tokens(text, end := start + int(index) + 1, classes[index]):
                return end, None
        blocks, end = [classes], start + PIECE_CHARS
        while end < len(text):
            classes = self._classify(text[end : end + PIECE_CHARS])
            for index in np.flatnonzero(classes <= _PROTECTED_BOUNDARY)[:_MAX_BOUNDARIES]:
                if self._is_outside_added_tokens(text, split := end + int(index) + 1, classes[index]):
                    return split, np.concatenate([*blocks, classes[: index + 1]])
            blocks.append(classes)
            end += PIECE_CHARS
        return len(text), np.concatenate(blocks)

    def _is_outside_added_tokens(self, text: str, split: int, char_class: int) -> bool:
        """Return whether no added token spans a position, which is after a character of this class."""
        if char_class == _BOUNDARY:
            return True
        contents = self._added_by_char[text[split - 1]] or []
        return all(text.find(item, max(0, split - len(item) + 1), split + len(item) - 1) < 0 for item in contents)

    def _classify(self, text: str) -> np.ndarray:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        classes = self._classes[codes]
        if not classes.all():
            for code in np.unique(codes[classes == _UNCLASSIFIED]).tolist():
                self._classes[code] = self._class_of(chr(code))
            classes = self._classes[codes]
        return classes

    def _class_of(self, char: str) -> int:
        normalized = self._normalize(char)
        # Between two letters, a character is part of their word, or ends the first one.
        words = [word for word, _ in self._pre_tokenizer.pre_tokenize_str(f"a{normalized}a")]
        if words == [f"a{normalized}a"]:
            # Marks that are kept may be reordered, and then the word begins elsewhere.
            return _OTHER if any(map(unicodedata.combining, normalized)) else _WORD + len(normalized)
        if words[0] != "a" or words[-1] != "a":
            return _OTHER
        if self._not_at_spaces and any(map(str.isspace, char + normalized)):
            return _WORD_END
        if self._ascii_only and (not char.isascii() or char == "_"):
            return _WORD_END
        if any(self._added_by_char.get(item, ()) is None for item in char + normalized):
            return _WORD_END
        return _PROTECTED_BOUNDARY if char in self._added_by_char else _BOUNDARY

    def _kept_positions(self, classes: np.ndarray) -> np.ndarray | None:
        """Return the positions of the characters of a piece that are kept, in order; None for all."""
        if not self._shortens_words:
            return None
        keep = np.ones(len(classes), bool)
        ends = np.flatnonzero(np.concatenate([classes <= _WORD_END, [True]]))
        starts = np.concatenate([[0], ends[:-1] + 1])
        for index in np.flatnonzero(ends - starts > 4 * self._margin).tolist():
            word = slice(starts[index], ends[index])
            if not (classes[word] == _OTHER).any():
                keep[word] = self._keep_in_word(classes[word] - _WORD)
        return None if keep.all() else np.flatnonzero(keep)

    def _keep_in_word(self, counts: np.ndarray) -> np.ndarray:
        """Return which characters of a word are kept, [characters] bool.

        Args:
            counts: [characters] how many characters the normalizer makes of each.
        """
        is_left = counts > 0
        # Added tokens may take characters of the word at both its ends.
        head, tail = self._longest_word + 2 * self._margin, 2 * self._margin
        if np.count_nonzero(is_left) <= head + tail:
            return self._within_margin(is_left)
        keep = np.zeros(len(counts), bool)
        left = np.flatnonzero(is_left)
        first, last = int(left[head - 1]), int(left[-tail])
        keep[: first + 1] = self._within_margin(is_left[: first + 1])
        keep[last:] = self._within_margin(is_left[last:])
        return keep

    def _within_margin(self, is_left: np.ndarray) -> np.ndarray:
        """Return the characters within `_margin` of one that the normalizer keeps, or of an end: [characters] bool."""
        keep = is_left.copy()
        for distance in range(1, min(self._margin, len(keep) - 1) + 1):
            keep[distance:] |= is_left[:-distance]
            keep[:-distance] |= is_left[distance:]
        keep[: self._margin] = keep[-self._margin :] = True
        return keep


def can_split(backend: tokenizers.Tokenizer) -> bool:
    """Return whether a tokenizer has BERT's normalizer, pre-tokenizer and model, and keeps all tokens at the end."""
    processor = backend.post_processor
    if isinstance(processor, tokenizers.processors.TemplateProcessing):
        keeps_tokens = sum("Sequence" in part for part in json.loads(processor.__getstate__())["single"]) == 1
    else:
        keeps_tokens = isinstance(processor, tokenizers.processors.BertProcessing | None)
    return (
        isinstance(backend.normalizer, tokenizers.normalizers.BertNormalizer | None)
        and isinstance(backend.pre_tokenizer, tokenizers.pre_tokenizers.BertPreTokenizer)
        and isinstance(backend.model, tokenizers.models.WordPiece)
        and keeps_tokens
    )
