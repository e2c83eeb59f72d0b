"""Rows, blocks (rows that are read together) and chunks (rows that are sent, written and skipped together)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

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


@dataclass(frozen=True)
class Selection:
    """Input columns to copy into the output: the kept ones (all by default) without the dropped ones."""

    keep: Sequence[str] = ()
    """Columns to keep; empty for all."""
    drop: Sequence[str] = ()

    def of(self, names: Iterable[str]) -> list[str]:
        """Return the selected columns among `names`."""
        return [name for name in names if name not in self.drop and (name in self.keep or not self.keep)]


ALL_COLUMNS = Selection()


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


@dataclass(frozen=True, slots=True)
class Rejection:
    """Reason why a row has no result."""

    reason: str


@dataclass(eq=False)
class Chunk:
    """Consecutive rows of a file with their results. Its bounds depend on the content of the file only."""

    name: str
    """Name of the file in messages."""
    path: str
    """Path or URL of the file."""
    file: int
    """Index of the file, from 0."""
    number: int
    """Index of the chunk in its file, from 0."""
    blocks: Sequence[Block]
    num_before: int
    """Rows of the file before this chunk."""
    fraction_before: float
    """Fraction of the file before this chunk."""
    results: list[Any] = field(default_factory=list)
    """For each row a result, a Rejection, or None while neither is known; empty before the rows are sent."""
    num_truncated: int = 0
    """Number of rows that the server truncated."""

    @cached_property
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

    @property
    def has_table(self) -> bool:
        """True if the blocks hold tables."""
        return self.blocks[0].table is not None

    def fraction(self, num_rows: int) -> float:
        """Return the fraction of the file up to row `num_rows` of this chunk, as if all rows were equally long."""
        whole = self.blocks[-1].fraction - self.fraction_before
        return self.fraction_before + whole * num_rows / max(1, len(self.rows))

    def row_number(self, index: int) -> int:
        """Return the number of a row in its file, from 1; skipped lines do not count."""
        return self.num_before + index + 1

    def answered(self) -> list[int]:
        """Return the indices of the rows that have results."""
        return [index for index, result in enumerate(self.results) if not isinstance(result, Rejection)]

    def rejected_rows(self) -> list[dict[str, Any]]:
        """Return place, reason and content of each rejected row, as the file of rejected rows holds them."""
        return [
            {
                "place": f"{self.name}, {row.place}",
                "row_number": self.row_number(index),
                "file": self.path,
                "reason": result.reason,
                "row": row.fields,
            }
            for index, (row, result) in enumerate(zip(self.rows, self.results, strict=True))
            if isinstance(result, Rejection)
        ]


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


def text_bytes(value: Any) -> int:
    """Return the UTF-8 bytes of the strings in a value; a lone surrogate counts as three."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    return sum(map(text_bytes, value)) if isinstance(value, list | tuple) else 0
