"""Cutting of long texts without any change of their tokens, for BERT's own tokenizers.

`BertNormalizer` treats each character by itself, and `BertPreTokenizer` ends a word at every space and punctuation
mark. So the tokens behind such a character are the same whatever stands before it, unless an added token ("[SEP]")
reaches over it. The backend itself classifies each character, so there is no table of Unicode here.

A word of more characters than the model takes is one unknown token. Its middle is left out, and so are long runs of
characters that the normalizer removes. So pieces stay short, and the offsets of their tokens are still those in the
text.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tokenizers

PIECE = 4096
"""Characters of a piece, where there is a place to cut. Tokenising and converting one takes a few milliseconds."""
_UNKNOWN, _CUT, _GUARDED, _UNCUT, _ODD, _WORD = range(6)
"""Classes of characters, in this order: not classified yet; a text can be cut behind it; the same, unless an added
token reaches over it; ends a word, but a text is never cut there; none of these. From _WORD on: part of a word, where
_WORD + n means that the normalizer makes n characters of it."""
_MAX_CONTENTS = 256
"""Most added tokens with the same character that are searched for; where more have it, a text is never cut there."""
_MAX_CANDIDATES = 32
"""Most places in a piece that are checked, last first, where an added token may reach over each."""
_MAX_MARGIN = 64
"""Long words are shortened only where the longest added token, plus one, has at most this many characters."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a text."""

    text: str
    start: int
    """Where it begins in the text."""
    places: np.ndarray | None = None
    """[characters] int64, where each stands behind `start`; None where nothing was left out."""

    def in_text(self, offsets: np.ndarray) -> np.ndarray:
        """Offsets in the piece, [tokens, 2], as offsets in the text."""
        if self.places is not None and len(offsets):
            offsets = np.stack([self.places[offsets[:, 0]], self.places[offsets[:, 1] - 1] + 1], axis=1)
        return offsets + self.start


class Pieces:
    """Cuts texts for one tokenizer."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Make it.

        Args:
            backend: `can_cut` it.
        """
        self._normalizer, self._pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        self._classes = np.zeros(0x110000, np.uint8)
        self._classes[0xD800:0xE000] = _ODD  # halves of surrogate pairs, which the backend refuses
        self._longest_word = backend.model.max_input_chars_per_word
        added = list(backend.get_added_tokens_decoder().values())
        self._ascii_only = any(token.single_word for token in added)
        self._no_space = any(token.lstrip or token.rstrip for token in added)
        self._contents: dict[str, list[str] | None] = {}
        """Added tokens by each character that is in them and does not end them; None: never cut there."""
        for token in added:
            self._note(token)
        self._margin = 1 + max((len(token.content) for token in added), default=0)
        self._shortens = self._margin <= _MAX_MARGIN and not any(map(self._is_in_a_word, added))

    def _note(self, token: tokenizers.AddedToken) -> None:
        if token.normalized or token.lstrip or token.rstrip or token.single_word:
            normalized = self._normalize(token.content) if token.normalized else ""
            self._contents.update(dict.fromkeys(token.content + normalized))
            return
        for char in set(token.content[:-1]):
            known = self._contents.setdefault(char, [])
            if known is not None:
                known.append(token.content)
                if len(known) > _MAX_CONTENTS:
                    self._contents[char] = None

    def _is_in_a_word(self, token: tokenizers.AddedToken) -> bool:
        """Whether an added token may stand within a word, as nothing in it ends one."""
        contents = [token.content, self._normalize(token.content)] if token.normalized else [token.content]
        return any((self._classes_of(content) >= _ODD).all() for content in contents)

    def _normalize(self, text: str) -> str:
        return text if self._normalizer is None else str(self._normalizer.normalize_str(text))

    def cut(self, text: str) -> Iterator[Piece]:
        """Cut a text; the tokens of the pieces, one after another, are those of the text."""
        start = 0
        while start < len(text):
            end, classes = self._end(text, start)
            places = self._kept(classes) if classes is not None else None
            if places is None:
                yield Piece(text[start:end], start)
            else:
                yield Piece("".join([text[start + place] for place in places]), start, places)
            start = end

    def _end(self, text: str, start: int) -> tuple[int, np.ndarray | None]:
        """The end of the piece that begins there, and the classes of its characters if it is longer than most."""
        if len(text) - start <= PIECE:
            return len(text), None
        classes = self._classes_of(text[start : start + PIECE])
        for place in reversed(self._candidates(classes)[-_MAX_CANDIDATES:]):
            if self._is_free(text, end := start + int(place) + 1, classes[place]):
                return end, None
        found, end = [classes], start + PIECE
        while end < len(text):
            classes = self._classes_of(text[end : end + PIECE])
            for place in self._candidates(classes)[:_MAX_CANDIDATES]:
                if self._is_free(text, cut := end + int(place) + 1, classes[place]):
                    return cut, np.concatenate([*found, classes[: place + 1]])
            found.append(classes)
            end += PIECE
        return len(text), np.concatenate(found)

    def _candidates(self, classes: np.ndarray) -> np.ndarray:
        return np.flatnonzero(classes <= _GUARDED)

    def _is_free(self, text: str, cut: int, kind: int) -> bool:
        """Whether no added token reaches over a place."""
        if kind == _CUT:
            return True
        contents = self._contents[text[cut - 1]] or []
        return all(text.find(item, max(0, cut - len(item) + 1), cut + len(item) - 1) < 0 for item in contents)

    def _classes_of(self, text: str) -> np.ndarray:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        classes = self._classes[codes]
        if not classes.all():
            for code in np.unique(codes[classes == _UNKNOWN]).tolist():
                self._classes[code] = self._class(chr(code))
            classes = self._classes[codes]
        return classes

    def _class(self, char: str) -> int:
        normalized = self._normalize(char)
        words = [word for word, _ in self._pre_tokenizer.pre_tokenize_str(f"a{normalized}a")]
        if words == [f"a{normalized}a"]:
            # Marks that are not removed may change places, and with them where a word begins.
            return _ODD if any(map(unicodedata.combining, normalized)) else _WORD + len(normalized)
        if words[0] != "a" or words[-1] != "a":
            return _ODD
        if self._no_space and any(map(str.isspace, char + normalized)):
            return _UNCUT
        if self._ascii_only and (not char.isascii() or char == "_"):
            return _UNCUT
        if any(self._contents.get(item, ()) is None for item in char + normalized):
            return _UNCUT
        return _GUARDED if char in self._contents else _CUT

    def _kept(self, classes: np.ndarray) -> np.ndarray | None:
        """Which characters of a piece are kept, in order; None for all."""
        if not self._shortens:
            return None
        keep = np.ones(len(classes), bool)
        ends = np.flatnonzero(np.concatenate([classes < _ODD, [True]]))
        starts = np.concatenate([[0], ends[:-1] + 1])
        for place in np.flatnonzero(ends - starts > 4 * self._margin).tolist():
            word = slice(starts[place], ends[place])
            if not (classes[word] == _ODD).any():
                keep[word] = self._kept_of_word(classes[word] - _WORD)
        return None if keep.all() else np.flatnonzero(keep)

    def _kept_of_word(self, counts: np.ndarray) -> np.ndarray:
        """Which characters of a word are kept, [characters] bool.

        Args:
            counts: [characters] how many each becomes.
        """
        is_left = counts > 0
        # Added tokens may take characters of the word at both its ends.
        head, tail = self._longest_word + 2 * self._margin, 2 * self._margin
        if np.count_nonzero(is_left) <= head + tail:
            return self._near(is_left)
        keep = np.zeros(len(counts), bool)
        left = np.flatnonzero(is_left)
        first, last = int(left[head - 1]), int(left[-tail])
        keep[: first + 1] = self._near(is_left[: first + 1])
        keep[last:] = self._near(is_left[last:])
        return keep

    def _near(self, is_left: np.ndarray) -> np.ndarray:
        """[characters] bool: those that are not removed, those close to them, and those at the ends."""
        keep = is_left.copy()
        for distance in range(1, min(self._margin, len(keep) - 1) + 1):
            keep[distance:] |= is_left[:-distance]
            keep[:-distance] |= is_left[distance:]
        keep[: self._margin] = keep[-self._margin :] = True
        return keep


def can_cut(backend: tokenizers.Tokenizer) -> bool:
    """Whether a tokenizer is BERT's: normalizer, pre-tokenizer, model, and nothing adds or drops tokens at the end."""
    return (
        isinstance(backend.normalizer, tokenizers.normalizers.BertNormalizer | None)
        and isinstance(backend.pre_tokenizer, tokenizers.pre_tokenizers.BertPreTokenizer)
        and isinstance(backend.model, tokenizers.models.WordPiece)
        and _keeps_tokens(backend.post_processor)
    )


def _keeps_tokens(processor: object) -> bool:
    if processor is None or isinstance(processor, tokenizers.processors.BertProcessing):
        return True
    if not isinstance(processor, tokenizers.processors.TemplateProcessing):
        return False
    single = json.loads(processor.__getstate__())["single"]
    return sum("Sequence" in part for part in single) == 1
