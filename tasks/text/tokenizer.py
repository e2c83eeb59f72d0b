"""Tokenizer of a checkpoint or model directory: ids, offsets, special tokens, assembly of sequences.

from tasks.text.tokenizer import Tokenizer
tokenizer = Tokenizer.load("runs/demo/checkpoint")
tokenizer.tokenize(["Hello!"])[0].ids
"""

from __future__ import annotations

import copy
import functools
import hashlib
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from tasks.text._space_splitter import SpaceSplitter, can_split_at_spaces
from tasks.text._splitter import PIECE_CHARS, Piece, TextSplitter, can_split
from tasks.text.sequence_template import read_templates
from tasks.text.tokenizer_files import (
    SPECIAL_TOKENS,
    USUAL_NAMES,
    build_tokenizer,
    load_backend,
    panics_as_errors,
    read_special_names,
)
from tasks.text.tokenizer_patterns import check_time
from tasks.text.word_pieces import WordPieces

BATCH_CHARS = 4 * PIECE_CHARS
"""Characters tokenized in one call of the backend, which takes up to 600 bytes for each until its tokens are arrays."""
SMALL_TEXT_CHARS = 2000
"""Longest single text tokenized by `encode` instead of `encode_batch`, in two thirds of the time. `encode` holds the
interpreter lock, here for up to 3 ms."""
_LARGE_TEXT_CHARS = 2**16
"""Texts longer than this that cannot be split are tokenized one at a time, to limit memory."""
_large_text_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one text, without special tokens."""

    ids: np.ndarray
    """[length, or `max_ids` if less] int64"""
    num_tokens: int
    """Number of tokens of the text, as far as it was read."""
    is_complete: bool = True
    """True if the whole text was read; otherwise it has at least `num_tokens`."""
    optional_offsets: np.ndarray | None = None
    """`offsets`, or None with `ids_only`."""

    @property
    def offsets(self) -> np.ndarray:
        """Code points of each token in the text, end exclusive: [length, 2] int64. Not available with `ids_only`."""
        assert self.optional_offsets is not None
        return self.optional_offsets

    def __len__(self) -> int:
        return self.num_tokens


class Tokenizer:
    """A Hugging Face `tokenizers` tokenizer of any kind. Never pads or truncates by itself."""

    def __init__(
        self, backend: tokenizers.Tokenizer, *, source: str = "tokenizer", names: Mapping[str, str] | None = None
    ) -> None:
        """Wrap a tokenizer.

        Args:
            source: name of its file, for errors.
            names: special tokens by role, from `read_special_names`; others are found by their usual names.

        Raises:
            ValueError: if a special token is not in the vocabulary, or the template cannot be used.
        """
        self.truncation_side = str((backend.truncation or {}).get("direction", "right"))
        """Side of long texts that transformers cuts off by `tokenizer.json`."""
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self._splitter: TextSplitter | SpaceSplitter | None = None
        """Splitter of long texts; None if the tokenizer needs the whole text."""
        if can_split(backend):
            self._splitter = TextSplitter(backend)
        elif can_split_at_spaces(backend):
            self._splitter = SpaceSplitter(backend)
        self._has_spaces = not isinstance(self._splitter, TextSplitter)
        """True if offsets may include the space before a word, as in byte-level BPE and SentencePiece."""
        self._on_tokens: Callable[[int], None] = _ignore
        self._on_sequences: Callable[[int], None] = _ignore
        self.vocab_size = _vocab_size(backend)
        ids = _special_ids(backend, names or {}, source)
        self.pad_id = ids["pad_token"] or 0
        """Padding; 0 in a tokenizer without such a token, since padding is never attended to."""
        self.unk_id = -1 if ids["unk_token"] is None else ids["unk_token"]
        """Unknown words; -1 in a tokenizer that has a token for every byte."""
        self.mask_id = ids["mask_token"]
        """Masked tokens; None in a tokenizer without masks."""
        with panics_as_errors(f"`{source}` is broken: the tokenizer cannot read a text"):
            self.single, self.pair = read_templates(backend, source)
            first, spaced = (backend.encode(text, add_special_tokens=False).ids for text in ("a", " a"))
            self._needs_space = first != spaced
            """True if a word has other tokens at the start of a text than behind a space, as in RoBERTa."""

    @classmethod
    def load(cls, directory: str | Path) -> Tokenizer:
        """Load the tokenizer of a checkpoint or model directory.

        Raises:
            ValueError: naming the file that is missing or broken, takes too long or contradicts another.
        """
        backend, path = load_backend(directory)
        check_time(backend, path)
        return cls(backend, source=str(path), names=read_special_names(Path(directory)))

    @property
    def digest(self) -> str:
        """SHA-256 of the tokenizer's whole definition, hexadecimal."""
        return hashlib.sha256(self.backend.to_str().encode()).hexdigest()

    @property
    def lowercases(self) -> bool:
        """True if text is lower-cased first."""
        return self.backend.normalizer is not None and self.backend.normalizer.normalize_str("A") == "a"

    @property
    def mask_token(self) -> str:
        """Mask token; empty in a tokenizer without one."""
        return "" if self.mask_id is None else self.token(self.mask_id)

    @property
    def filler_id(self) -> int:
        """Id that stands for a word without tokens, and for any token where the text does not matter."""
        return self.unk_id if self.unk_id >= 0 else self.pad_id

    def with_progress(
        self, on_tokens: Callable[[int], None], on_sequences: Callable[[int], None] | None = None
    ) -> Tokenizer:
        """Return a copy that reports its progress. A callback may raise to end the work.

        Args:
            on_tokens: called every few thousand characters with the number of tokens kept since the last call.
            on_sequences: called with 1 for each sequence that a text is divided into, before any is made.
        """
        other = copy.copy(self)
        other._on_tokens, other._on_sequences = on_tokens, on_sequences or _ignore
        return other

    def check_cancelled(self) -> None:
        """Report no tokens, so that the callback of `with_progress` may raise."""
        self._on_tokens(0)

    def report_sequences(self, bounds: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """List the bounds of the sequences that a text is divided into, and report each to `with_progress`."""
        listed = []
        for item in bounds:
            self._on_sequences(1)
            listed.append(item)
        return listed

    def tokenize(
        self, texts: Sequence[str], *, ids_only: bool = False, max_ids: int | None = None, stop_after: int | None = None
    ) -> list[Tokens]:
        """Tokenize texts, without special tokens.

        Args:
            ids_only: leave out the offsets.
            max_ids: keep at most this many tokens of each text, but count all of them.
            stop_after: stop reading a long text once it has more tokens than this.
        """
        if len(texts) == 1 and len(texts[0]) <= SMALL_TEXT_CHARS:
            with panics_as_errors():
                encoding = self.backend.encode(texts[0], add_special_tokens=False)
            return [self._to_tokens(texts[0], encoding, ids_only, max_ids)]
        if all(len(text) <= PIECE_CHARS for text in texts):
            found: list[Tokens] = []
            for batch in _batches(texts):
                encodings = self._encode(batch, ids_only=ids_only)
                tokens = [self._to_tokens(*pair, ids_only, max_ids) for pair in zip(batch, encodings, strict=True)]
                self._on_tokens(sum(len(item.ids) for item in tokens))
                found += tokens
            return found
        buffers = [_TokenBuffer(max_ids, stop_after) for _ in texts]
        for number, piece, encoding in self._encode_pieces(texts, buffers, ids_only=ids_only):
            offsets = None if ids_only else self._offsets(piece, encoding)
            self._on_tokens(buffers[number].add(encoding, offsets))
        return [buffer.tokens(ids_only=ids_only) for buffer in buffers]

    def tokenize_words(self, words: Sequence[str], *, max_ids: int | None = None) -> list[Tokens]:
        """Tokenize words by themselves, each as if a space were before it, without offsets.

        Source: `is_split_into_words` with `add_prefix_space` in transformers.
        """
        texts = [f" {word}" for word in words] if self._needs_space else words
        return self.tokenize(texts, ids_only=True, max_ids=max_ids)

    def tokenize_blocks(self, text: str) -> Iterator[Tokens]:
        """Tokenize one text, a few thousand tokens at a time."""
        for _, piece, encoding in self._encode_pieces([text], [_TokenBuffer()], ids_only=False):
            ids = np.array(encoding.ids, dtype=np.int64)
            self._on_tokens(len(ids))
            yield Tokens(ids, len(ids), optional_offsets=self._offsets(piece, encoding))

    def word_offsets(self, text: str) -> np.ndarray:
        """Return the words of a text, with `include_combining_marks`.

        BERT's tokenizers divide a text into words themselves; other tokenizers get the same words, since theirs may
        include punctuation marks, or whole sentences of Chinese.

        Returns:
            [words, 2] int64, (start, end) in code points.
        """
        if not isinstance(self._splitter, TextSplitter):
            return _word_divider().with_progress(self._on_tokens, self._on_sequences).word_offsets(text)
        blocks = [np.zeros((0, 2), np.int64)]
        for _, piece, encoding in self._encode_pieces([text], [_TokenBuffer()], ids_only=False):
            offsets = self._offsets(piece, encoding)
            is_first = np.diff(np.array(encoding.word_ids, np.int64), prepend=-1) != 0
            is_last = np.roll(is_first, -1)
            blocks.append(np.stack([offsets[is_first, 0], offsets[is_last, 1]], axis=1))
            self._on_tokens(len(offsets))
        return include_combining_marks(text, np.concatenate(blocks))

    def token(self, token_id: int) -> str:
        """Return the token of an id; empty for an id without one."""
        return self.backend.id_to_token(token_id) or ""

    def token_id(self, token: str) -> int | None:
        """Return the id of a token, None where the vocabulary lacks it."""
        return self.backend.token_to_id(token)

    def continues_word(self, ids: np.ndarray) -> np.ndarray:
        """Return which tokens of a text continue the word of the token before them: [length] bool (`WordPieces`)."""
        return self.word_pieces.continues(ids)

    @functools.cached_property
    def word_pieces(self) -> WordPieces:
        """Text of the tokens, and which of them continue words."""
        return WordPieces(self.backend, self.vocab_size)

    def assemble(self, first_ids: np.ndarray, second_ids: np.ndarray | None = None) -> dict[str, Any]:
        """Assemble a text or a pair with the special tokens (see `SequenceTemplate.assemble`)."""
        return self.single.assemble(first_ids) if second_ids is None else self.pair.assemble(first_ids, second_ids)

    def _to_tokens(self, text: str, encoding: tokenizers.Encoding, ids_only: bool, max_ids: int | None) -> Tokens:
        ids = np.array(encoding.ids, dtype=np.int64)
        offsets = None if ids_only else self._offsets(Piece(text, 0), encoding)[:max_ids]
        return Tokens(ids[:max_ids], len(ids), True, offsets)

    def _offsets(self, piece: Piece, encoding: tokenizers.Encoding) -> np.ndarray:
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        if self._has_spaces:
            offsets = _without_spaces(piece.text, offsets)
        if isinstance(self._splitter, SpaceSplitter) and piece.start and encoding.ids[:1] == [self._splitter.space_id]:
            offsets[0] = 1
        return piece.to_text_offsets(offsets)

    def _encode_pieces(
        self, texts: Sequence[str], buffers: Sequence[_TokenBuffer], *, ids_only: bool
    ) -> Iterator[tuple[int, Piece, tokenizers.Encoding]]:
        """Split texts and encode the pieces in batches of `BATCH_CHARS`, until the buffer of a text is full.

        Yields:
            Number of the text, piece, and its encoding.
        """
        batch: list[tuple[int, Piece]] = []
        size = 0
        for number, text in enumerate(texts):
            for piece in self._split(text):
                if buffers[number].is_full:
                    buffers[number].is_complete = False
                    break
                batch.append((number, piece))
                size += len(piece.text)
                if size >= BATCH_CHARS:
                    yield from self._encode_batch(batch, ids_only=ids_only)
                    batch, size = [], 0
        yield from self._encode_batch(batch, ids_only=ids_only)

    def _split(self, text: str) -> Iterable[Piece]:
        if len(text) <= PIECE_CHARS or self._splitter is None:
            return (Piece(text, 0),)
        return self._splitter.split(text)

    def _encode_batch(
        self, batch: Sequence[tuple[int, Piece]], *, ids_only: bool
    ) -> Iterator[tuple[int, Piece, tokenizers.Encoding]]:
        encodings = self._encode([piece.text for _, piece in batch], ids_only=ids_only)
        for (number, piece), encoding in zip(batch, encodings, strict=True):
            yield number, piece, encoding

    def _encode(self, texts: list[str], *, ids_only: bool) -> list[tokenizers.Encoding]:
        encode = self.backend.encode_batch_fast if ids_only else self.backend.encode_batch
        is_large = any(len(text) > _LARGE_TEXT_CHARS for text in texts)
        with panics_as_errors(), _large_text_lock if is_large else nullcontext():
            return encode(texts, add_special_tokens=False)


def include_combining_marks(text: str, bounds: np.ndarray) -> np.ndarray:
    """Extend spans of a text over the combining marks behind them that no other span covers.

    An accent on the last letter may be a separate code point, which the tokenizer drops.

    Args:
        bounds: [spans, 2] int64, (start, end) in code points, in the order of the text.
    """
    if text.isascii() or not len(bounds):
        return bounds
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    limits = np.append(bounds[1:, 0], len(text))
    followed = np.flatnonzero(bounds[:, 1] < limits)
    marked = followed[codes[bounds[followed, 1]] >= _FIRST_COMBINING_MARK]
    bounds = bounds.copy()
    for index in marked:
        end, limit = int(bounds[index, 1]), int(limits[index])
        while end < limit and ord(text[end]) >= _FIRST_COMBINING_MARK and unicodedata.category(text[end])[0] == "M":
            end += 1
        bounds[index, 1] = end
    return bounds


_FIRST_COMBINING_MARK = 0x300


class _TokenBuffer:
    """Tokens of one text, collected piece by piece."""

    def __init__(self, max_ids: int | None = None, stop_after: int | None = None) -> None:
        self._max_ids = sys.maxsize if max_ids is None else max_ids
        self._stop_after = sys.maxsize if stop_after is None else stop_after
        self._ids: list[np.ndarray] = []
        self._offsets: list[np.ndarray] = []
        self._num_kept = self._num_tokens = 0
        self.is_complete = True

    @property
    def is_full(self) -> bool:
        """True once more than `stop_after` tokens were counted."""
        return self._num_tokens > self._stop_after

    def add(self, encoding: tokenizers.Encoding, offsets: np.ndarray | None) -> int:
        """Add the next piece, and return how many of its tokens are kept.

        Args:
            offsets: offsets of its tokens in the text; None if nobody needs them.
        """
        num_tokens = len(encoding)
        num_kept = min(num_tokens, self._max_ids - self._num_kept)
        if num_kept:
            self._ids.append(np.array(encoding.ids, dtype=np.int64)[:num_kept])
            if offsets is not None:
                self._offsets.append(offsets[:num_kept])
        self._num_kept += num_kept
        self._num_tokens += num_tokens
        return num_kept

    def tokens(self, *, ids_only: bool) -> Tokens:
        """Return the collected tokens."""
        ids = np.concatenate([np.zeros(0, np.int64), *self._ids])
        offsets = None if ids_only else np.concatenate([np.zeros((0, 2), np.int64), *self._offsets])
        return Tokens(ids, self._num_tokens, self.is_complete, offsets)


@functools.cache
def _word_divider() -> Tokenizer:
    """Return a tokenizer of BERT's kind, without a vocabulary."""
    return Tokenizer(build_tokenizer(SPECIAL_TOKENS, lowercase=False))


def _without_spaces(text: str, offsets: np.ndarray) -> np.ndarray:
    """Return offsets [tokens, 2] without the white space at both ends of a token."""
    if not len(offsets):
        return offsets
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    visible = np.flatnonzero(~np.isin(codes, _SPACES))
    starts, ends = offsets.T
    trimmed_starts = np.append(visible, len(text))[np.searchsorted(visible, starts)]
    trimmed_ends = np.append(-1, visible)[np.searchsorted(visible, ends)] + 1
    starts = np.minimum(trimmed_starts, ends)
    return np.stack([starts, np.maximum(trimmed_ends, starts)], axis=1)


_SPACES = np.array([code for code in range(0x3001) if chr(code).isspace()], np.uint32)


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Split a list of texts into batches of about `BATCH_CHARS`."""
    first = size = 0
    for number, text in enumerate(texts, 1):
        size += len(text)
        if size >= BATCH_CHARS:
            yield list(texts[first:number])
            first, size = number, 0
    if first < len(texts):
        yield list(texts[first:])


def _ignore(count: int) -> None:
    pass


def _special_ids(backend: tokenizers.Tokenizer, names: Mapping[str, str], source: str) -> dict[str, int | None]:
    """Return the ids of special tokens by role; None for those that the tokenizer lacks."""
    if unknown := getattr(backend.model, "unk_token", None):
        names = {**names, "unk_token": unknown}
    ids: dict[str, int | None] = {}
    for role, usual in USUAL_NAMES.items():
        if role in names and backend.token_to_id(names[role]) is None:
            raise ValueError(f"the vocabulary of `{source}` lacks its {role}, `{names[role]}`")
        candidates = [names[role]] if role in names else usual
        ids[role] = next((index for token in candidates if (index := backend.token_to_id(token)) is not None), None)
    return ids


def _vocab_size(backend: tokenizers.Tokenizer) -> int:
    """Return the highest id plus one. Some ids may have no token."""
    model = backend.model
    num_tokens = backend.get_vocab_size(with_added_tokens=False)
    # Ask for one id at a time: `get_vocab` holds the interpreter lock for as long as loading does.
    if all(model.id_to_token(index) is not None for index in range(num_tokens)):
        return max(num_tokens, 1 + max(backend.get_added_tokens_decoder(), default=-1))
    return 1 + max(backend.get_vocab().values(), default=-1)
