"""Rows, blocks (rows that are read together) and chunks (rows that are sent, written and skipped together)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

BLOCK_ROWS = 256
"""Rows of a block."""
CHUNK_ROWS = 2048
"""Rows after which a chunk ends."""
CHUNK_BYTES = 2 << 20
"""Bytes of text after which a chunk ends, and bytes of lines after which a block ends."""
CHUNK_TOTAL_BYTES = 16 << 20
"""Bytes of all columns after which a chunk ends."""
MAX_LINE_BYTES = 64 << 20
"""Default for the longest line of a file."""


@dataclass(slots=True)
class Row:
    """One row of a file."""

    place: str
    """Place in the file: `line 7`, or `row 7`."""
    fields: dict[str, Any]
    reason: str = ""
    """Reason why the row cannot be used; empty if it can."""


@dataclass(slots=True)
class Block:
    """Rows that were read together."""

    rows: list[Row]
    digest: bytes
    """Digest of the bytes that were read."""
    fraction: float
    """Fraction of the file up to the end of this block."""
    num_bytes: int = 0
    """Bytes of all columns."""
    table: Any = None
    """All columns as a pyarrow.RecordBatch, for Parquet; `rows` then hold the columns of the operation only."""


@dataclass(frozen=True)
class Selection:
    """Input columns to copy into the output: the kept ones (all by default) without the dropped ones.

    Raises:
        ValueError: when a column is both kept and dropped.
    """

    keep: Sequence[str] = ()
    """Columns to keep; empty for all."""
    drop: Sequence[str] = ()

    def __post_init__(self) -> None:
        if both := [name for name in self.keep if name in self.drop]:
            raise ValueError(f"--keep and --drop both name `{both[0]}`; name it in one of them")

    def of(self, names: Iterable[str]) -> list[str]:
        """Return the selected columns among `names`."""
        return [name for name in self.without_dropped(names) if name in self.keep or not self.keep]

    def without_dropped(self, names: Iterable[str]) -> list[str]:
        """Return `names` without the columns to drop."""
        return [name for name in names if name not in self.drop]


ALL_COLUMNS = Selection()


class RowSource(Protocol):
    """Source of rows."""

    @property
    def name(self) -> str:
        """Name of the source in messages."""

    @property
    def path(self) -> str:
        """Path or URL of the source."""

    def blocks(self, wanted: Sequence[str], needed: Sequence[str], selection: Selection) -> Iterator[Block]:
        """Read the source.

        Args:
            wanted: columns that the operation reads, as far as they exist.
            needed: columns that must exist.
            selection: columns to copy into the output.

        Raises:
            FileError: when the source cannot be read, or a table lacks a needed column.
        """


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of a file. Its bounds depend on the content of the file only."""

    source: RowSource
    file: int
    """Index of the file, from 0."""
    number: int
    """Index of the chunk in its file, from 0."""
    blocks: Sequence[Block]
    num_before: int = 0
    """Rows of the file before this chunk."""

    @property
    def rows(self) -> list[Row]:
        """Rows of all blocks."""
        return [row for block in self.blocks for row in block.rows]

    @property
    def num_bytes(self) -> int:
        """Bytes of all columns."""
        return sum(block.num_bytes for block in self.blocks)

    @property
    def digest(self) -> str:
        """Digest of the bytes that were read, 12 hexadecimal digits."""
        return hashlib.blake2b(b"".join(block.digest for block in self.blocks), digest_size=6).hexdigest()

    def fraction(self, num_rows: int) -> float:
        """Return the fraction of the file up to row `num_rows` of this chunk, rounded up to a block."""
        ends = accumulate(len(block.rows) for block in self.blocks)
        return next(block.fraction for block, end in zip(self.blocks, ends, strict=True) if end >= num_rows)

    def place(self, row: Row) -> str:
        """Return file and place of a row, for messages."""
        return f"{self.source.name}, {row.place}"

    def row_number(self, index: int) -> int:
        """Return the number of a row in its file, from 1; skipped lines do not count."""
        return self.num_before + index + 1


def blocks_of(rows: Iterable[tuple[Row, bytes]], fraction: Callable[[], float]) -> Iterator[Block]:
    """Group rows into blocks.

    Args:
        rows: rows, each with the bytes that were read for it.
        fraction: returns the fraction of the file that was read.
    """
    taken, digest, num_bytes = list[Row](), hashlib.blake2b(digest_size=16), 0
    for row, raw in rows:
        taken.append(row)
        digest.update(raw)
        num_bytes += len(raw)
        if len(taken) >= BLOCK_ROWS or num_bytes >= CHUNK_BYTES:
            yield Block(taken, digest.digest(), fraction(), num_bytes)
            taken, digest, num_bytes = [], hashlib.blake2b(digest_size=16), 0
    if taken:
        yield Block(taken, digest.digest(), fraction(), num_bytes)


def digest_of(parts: Iterable[bytes]) -> bytes:
    """Return the BLAKE2b digest of some bytes, 16 bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()


def chunks_of(
    source: RowSource,
    file: int,
    wanted: Sequence[str],
    needed: Sequence[str],
    num_bytes: Callable[[Row], int],
    max_rows: int | None = None,
    selection: Selection = ALL_COLUMNS,
) -> Iterator[Chunk]:
    """Group the blocks of a file into chunks.

    Args:
        file: index of the file.
        wanted: see `RowSource.blocks`, as for `needed` and `selection`.
        num_bytes: returns the bytes of a row's text.
        max_rows: rows after which a chunk ends, rounded up to whole blocks; None for CHUNK_ROWS.
    """
    blocks: list[Block] = []
    num_rows = size = total = number = num_before = 0
    for block in source.blocks(wanted, needed, selection):
        blocks.append(block)
        num_rows += len(block.rows)
        size += sum(map(num_bytes, block.rows))
        total += block.num_bytes
        if num_rows >= (max_rows or CHUNK_ROWS) or size >= CHUNK_BYTES or total >= CHUNK_TOTAL_BYTES:
            yield Chunk(source, file, number, blocks, num_before)
            blocks, num_rows, size, total, number, num_before = [], 0, 0, 0, number + 1, num_before + num_rows
    if blocks:
        yield Chunk(source, file, number, blocks, num_before)


def text_bytes(value: Any) -> int:
    """Return the UTF-8 bytes of the strings in a value; a lone surrogate counts as three."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    return sum(map(text_bytes, value)) if isinstance(value, list | tuple) else 0
