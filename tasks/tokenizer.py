"""WordPiece tokenizer of a checkpoint or model directory: ids and offsets, special tokens, assembly of sequences.

from tasks.tokenizer import Tokenizer
tokenizer = Tokenizer.load("runs/demo/checkpoint")
tokenizer.tokenize(["Hello!"])[0].ids
"""

from __future__ import annotations

import copy
import hashlib
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from tasks._splitter import PIECE, Piece, Pieces, can_cut
from tasks.tokenizer_files import is_panic, load_backend

BATCH = 4 * PIECE
"""Characters that are tokenised at a time: the backend takes up to 600 bytes for each, until its tokens are arrays."""
SMALL = 2000
"""A text of no more characters is tokenised without a batch, in two thirds of the time; the backend then holds the
interpreter lock for up to 3 ms."""
_WHOLE = 2**16
"""Longer texts that cannot be cut are tokenised one after another, as they take much memory."""
_whole = threading.Lock()


@dataclass(frozen=True, slots=True)
class Tokens:
    """One tokenised text, without special tokens."""

    ids: np.ndarray
    """[length, or as many as were asked for] int64"""
    num_tokens: int
    """Tokens of the text."""
    is_whole: bool = True
    """Whether all of the text was read; otherwise it has at least `num_tokens`."""
    places: np.ndarray | None = None
    """The offsets, unless only ids were asked for."""

    @property
    def offsets(self) -> np.ndarray:
        """[length, 2] int64, code points of the text, end exclusive; there unless only ids were asked for."""
        assert self.places is not None
        return self.places

    def __len__(self) -> int:
        return self.num_tokens


class Tokenizer:
    """A Hugging Face `tokenizers` tokenizer with BERT's special tokens. Never pads or truncates by itself."""

    def __init__(self, backend: tokenizers.Tokenizer, *, source: str = "tokenizer") -> None:
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self._pieces = Pieces(backend) if can_cut(backend) else None
        self._watch: Callable[[int], None] = _nobody
        self._watch_sequences: Callable[[int], None] = _nobody
        self.vocab_size = _vocab_size(backend)
        self.cls_id, self.sep_id, self.pad_id, self.mask_id, self.unk_id = (
            _special_id(backend, token, source) for token in ("[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]")
        )
        unknown = getattr(backend.model, "unk_token", None)
        if unknown is not None and backend.model.token_to_id(unknown) is None:
            raise ValueError(f"the vocabulary of `{source}` lacks its unk_token, `{unknown}`")

    @classmethod
    def load(cls, directory: str | Path) -> Tokenizer:
        """Load `tokenizer.json`, or build the same from `vocab.txt` and `tokenizer_config.json`.

        Raises:
            ValueError: naming the directory, when it holds neither, or the file that is broken or contradicts another.
        """
        backend, path = load_backend(directory)
        return cls(backend, source=str(path))

    @property
    def digest(self) -> str:
        """SHA-256 of all that it does with text, hexadecimal."""
        return hashlib.sha256(self.backend.to_str().encode()).hexdigest()

    def watched(self, watch: Callable[[int], None], sequences: Callable[[int], None] | None = None) -> Tokenizer:
        """Return a copy that reports its progress.

        Args:
            watch: called every few thousand characters with the number of tokens that were kept of them; an exception
                that it raises ends the work.
            sequences: the same for sequences that a text is to become: called with 1 for each, before any is made.
        """
        other = copy.copy(self)
        other._watch, other._watch_sequences = watch, sequences or _nobody
        return other

    def tokenize(
        self, texts: Sequence[str], *, ids_only: bool = False, keep: int | None = None, enough: int | None = None
    ) -> list[Tokens]:
        """Tokenise texts, without special tokens.

        Args:
            ids_only: do not say where each token stands.
            keep: keep so many tokens of each text, and only count the others.
            enough: stop reading a long text once it has more tokens than this.
        """
        if len(texts) == 1 and len(texts[0]) <= SMALL:
            return [_tokens(self._encode_small(texts[0]), ids_only, keep)]
        if all(len(text) <= PIECE for text in texts):
            return [tokens for group in _groups(texts) for tokens in self._tokenize_short(group, ids_only, keep)]
        found = [_Gathered(keep, enough) for _ in texts]
        for number, piece, encoding in self._encodings(texts, found, fast=ids_only):
            self._watch(found[number].add(piece, encoding, ids_only=ids_only))
        return [item.tokens(ids_only=ids_only) for item in found]

    def blocks(self, text: str) -> Iterator[Tokens]:
        """Tokenise a text, some thousand tokens at a time."""
        for _, piece, encoding in self._encodings([text], [_Gathered()], fast=False):
            ids = np.array(encoding.ids, dtype=np.int64)
            self._watch(len(ids))
            yield Tokens(ids, len(ids), places=_offsets(piece, encoding))

    def _tokenize_short(self, texts: list[str], ids_only: bool, keep: int | None) -> list[Tokens]:
        found = [_tokens(encoding, ids_only, keep) for encoding in self._encode(texts, fast=ids_only)]
        self._watch(sum(len(item.ids) for item in found))
        return found

    def _encodings(
        self, texts: Sequence[str], found: Sequence[_Gathered], *, fast: bool
    ) -> Iterator[tuple[int, Piece, tokenizers.Encoding]]:
        """Yield the backend's encodings of the pieces of texts, which it makes some thousand characters at a time."""
        batch: list[tuple[int, Piece]] = []
        size = 0
        for number, text in enumerate(texts):
            for piece in self._cut(text):
                if found[number].is_enough:
                    found[number].is_whole = False
                    break
                batch.append((number, piece))
                size += len(piece.text)
                if size >= BATCH:
                    yield from self._encoded(batch, fast=fast)
                    batch, size = [], 0
        yield from self._encoded(batch, fast=fast)

    def _cut(self, text: str) -> Iterable[Piece]:
        if len(text) <= PIECE or self._pieces is None:
            return (Piece(text, 0),)
        return self._pieces.cut(text)

    def _encoded(
        self, batch: Sequence[tuple[int, Piece]], *, fast: bool
    ) -> Iterator[tuple[int, Piece, tokenizers.Encoding]]:
        encodings = self._encode([piece.text for _, piece in batch], fast=fast)
        for (number, piece), encoding in zip(batch, encodings, strict=True):
            yield number, piece, encoding

    def _encode_small(self, text: str) -> tokenizers.Encoding:
        try:
            return self.backend.encode(text, add_special_tokens=False)
        except BaseException as error:
            _check_panic(error)
            raise

    def _encode(self, texts: list[str], *, fast: bool) -> list[tokenizers.Encoding]:
        encode = self.backend.encode_batch_fast if fast else self.backend.encode_batch
        try:
            with _whole if any(len(text) > _WHOLE for text in texts) else nullcontext():
                return encode(texts, add_special_tokens=False)
        except BaseException as error:
            _check_panic(error)
            raise

    @property
    def lowercases(self) -> bool:
        """Whether capitals become small letters before anything else."""
        return self.backend.normalizer is not None and self.backend.normalizer.normalize_str("A") == "a"

    def words(self, text: str) -> np.ndarray:
        """Return the places of the words that the tokenizer sees in a text: [words, 2] int64, (start, end) in code
        points, `with_marks`."""
        blocks = [np.zeros((0, 2), np.int64)]
        for _, piece, encoding in self._encodings([text], [_Gathered()], fast=False):
            offsets = _offsets(piece, encoding)
            firsts = np.diff(np.array(encoding.word_ids, np.int64), prepend=-1) != 0
            lasts = np.roll(firsts, -1)
            blocks.append(np.stack([offsets[firsts, 0], offsets[lasts, 1]], axis=1))
            self._watch(len(offsets))
        return with_marks(text, np.concatenate(blocks))

    def token(self, token_id: int) -> str:
        """The token of an id; empty for an id without one."""
        return self.backend.id_to_token(token_id) or ""

    def token_id(self, token: str) -> int | None:
        """The id of a token, None where the vocabulary lacks it."""
        return self.backend.token_to_id(token)

    def continues_word(self) -> np.ndarray:
        """[vocabulary] bool: which tokens are pieces (`##ing`) of the word that the token before belongs to."""
        return np.array([self.token(index).startswith("##") for index in range(self.vocab_size)])

    def check(self) -> None:
        """Call the watcher, which may raise to end the work, with no tokens."""
        self._watch(0)

    def planned(self, bounds: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """List the bounds of the sequences that a text is to become, and report each of them."""
        found = []
        for item in bounds:
            self._watch_sequences(1)
            found.append(item)
        return found

    def assemble(self, first_ids: np.ndarray, second_ids: np.ndarray | None = None) -> dict[str, Any]:
        """`[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]` with token types 0 (read-only where all are) and 1.

        Returns:
            The fields of `Features`: `input_ids` and `token_type_ids`, each [length] int64.
        """
        parts = [np.array([self.cls_id]), first_ids, np.array([self.sep_id])]
        if second_ids is not None:
            parts += [second_ids, np.array([self.sep_id])]
        input_ids = np.concatenate(parts).astype(np.int64, copy=False)
        if second_ids is None and len(input_ids) <= len(_ZEROS):
            return {"input_ids": input_ids, "token_type_ids": _ZEROS[: len(input_ids)]}
        token_type_ids = np.zeros(len(input_ids), dtype=np.int64)
        token_type_ids[len(first_ids) + 2 :] = 1
        return {"input_ids": input_ids, "token_type_ids": token_type_ids}


def _check_panic(error: BaseException) -> None:
    """Raise ValueError where an error is a panic in Rust, whose class no module exports."""
    if is_panic(error):
        raise ValueError(f"the tokenizer cannot read a text: {error}") from error


def _groups(texts: Sequence[str]) -> Iterator[list[str]]:
    """Texts, so many at a time that they have about `BATCH` characters."""
    first = size = 0
    for number, text in enumerate(texts, 1):
        size += len(text)
        if size >= BATCH:
            yield list(texts[first:number])
            first, size = number, 0
    if first < len(texts):
        yield list(texts[first:])


def _tokens(encoding: tokenizers.Encoding, ids_only: bool, keep: int | None) -> Tokens:
    ids = np.array(encoding.ids, dtype=np.int64)
    places = None if ids_only else np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)[:keep]
    return Tokens(ids[:keep], len(ids), True, places)


_ZEROS = np.zeros(4096, np.int64)
"""Token types of single texts, which need no memory of their own; nobody writes there."""
_ZEROS.setflags(write=False)


class _Gathered:
    """Tokens of a text, gathered piece by piece."""

    def __init__(self, keep: int | None = None, enough: int | None = None) -> None:
        self._keep, self._enough = sys.maxsize if keep is None else keep, sys.maxsize if enough is None else enough
        self._ids: list[np.ndarray] = []
        self._offsets: list[np.ndarray] = []
        self._num_kept = self._num_tokens = 0
        self.is_whole = True

    @property
    def is_enough(self) -> bool:
        """Whether no more need be read."""
        return self._num_tokens > self._enough

    def add(self, piece: Piece, encoding: tokenizers.Encoding, *, ids_only: bool) -> int:
        """Add the next piece; returns how many of its tokens are kept."""
        num_tokens = len(encoding)
        num_kept = min(num_tokens, self._keep - self._num_kept)
        if num_kept:
            self._ids.append(np.array(encoding.ids, dtype=np.int64)[:num_kept])
            if not ids_only:
                self._offsets.append(_offsets(piece, encoding)[:num_kept])
        self._num_kept += num_kept
        self._num_tokens += num_tokens
        return num_kept

    def tokens(self, *, ids_only: bool) -> Tokens:
        """Return all tokens that were gathered."""
        ids = _joined(self._ids, np.zeros(0, np.int64))
        places = None if ids_only else _joined(self._offsets, np.zeros((0, 2), np.int64))
        return Tokens(ids, self._num_tokens, self.is_whole, places)


def _joined(blocks: Sequence[np.ndarray], empty: np.ndarray) -> np.ndarray:
    if len(blocks) == 1:
        return blocks[0]
    return np.concatenate(blocks) if blocks else empty


def _offsets(piece: Piece, encoding: tokenizers.Encoding) -> np.ndarray:
    return piece.in_text(np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2))


def _nobody(count: int) -> None:
    """Nobody watches."""


_FIRST_MARK = 0x300


def with_marks(text: str, bounds: np.ndarray) -> np.ndarray:
    """Places (start, end) in a text, in its order, each with the combining marks behind it that are in no place: an
    accent on the last letter may be a code point of its own, which the tokenizer drops.

    Args:
        bounds: [places, 2] int64.
    """
    if text.isascii() or not len(bounds):
        return bounds
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    limits = np.append(bounds[1:, 0], len(text))
    followed = np.flatnonzero(bounds[:, 1] < limits)
    marked = followed[codes[bounds[followed, 1]] >= _FIRST_MARK]
    bounds = bounds.copy()
    for place in marked:
        bounds[place, 1] = _end_of_marks(text, int(bounds[place, 1]), int(limits[place]))
    return bounds


def _end_of_marks(text: str, end: int, limit: int) -> int:
    while end < limit and ord(text[end]) >= _FIRST_MARK and unicodedata.category(text[end]).startswith("M"):
        end += 1
    return end


def _vocab_size(backend: tokenizers.Tokenizer) -> int:
    """Return one more than the highest id; there may be ids without a token."""
    model = backend.model
    num_tokens = backend.get_vocab_size(with_added_tokens=False)
    # One by one, as `get_vocab` holds the interpreter lock for as long as loading does.
    if all(model.id_to_token(index) is not None for index in range(num_tokens)):
        return max(num_tokens, 1 + max(backend.get_added_tokens_decoder(), default=-1))
    return 1 + max(backend.get_vocab().values(), default=-1)


def _special_id(backend: tokenizers.Tokenizer, token: str, source: str) -> int:
    token_id = backend.token_to_id(token)
    if token_id is None:
        raise ValueError(
            f"the vocabulary of `{source}` lacks `{token}`; only BERT's WordPiece tokenizers are supported"
        )
    return token_id
