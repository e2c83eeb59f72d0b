"""Rows -> chunks: what is asked about, written and, after an interruption, passed over together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any, Protocol

BLOCK_ROWS = 256
"""Rows that are read at one time."""


@dataclass(slots=True)
class Row:
    """One row of a file."""

    place: str
    """`line 7`, or `row 7`."""
    fields: dict[str, Any]
    reason: str = ""
    """Why it cannot be used."""


@dataclass(slots=True)
class Block:
    """Rows that were read together."""

    rows: list[Row]
    digest: bytes
    """Of all that was read."""
    share: float
    """Of the file, that was read with it."""
    table: Any = None
    """All columns as a pyarrow.RecordBatch, of Parquet; the rows then hold those that were wanted."""


def blocks_of(rows: Iterable[tuple[Row, bytes]], share: Callable[[], float]) -> Iterator[Block]:
    """Put rows together.

    Args:
        rows: each with what was read of it.
        share: tells which share of the file was read.
    """
    source = iter(rows)
    while taken := list(islice(source, BLOCK_ROWS)):
        yield Block([row for row, _ in taken], digest_of(raw for _, raw in taken), share())


def digest_of(parts: Iterable[bytes]) -> bytes:
    """Tells other bytes apart."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()


@dataclass(frozen=True)
class Selection:
    """The columns that were named to be kept, or all of them; without those that were named to be dropped.

    Raises:
        ValueError: when a column is named for both.
    """

    keep: Sequence[str] = ()
    """None of them: all."""
    drop: Sequence[str] = ()

    def __post_init__(self) -> None:
        if both := [name for name in self.keep if name in self.drop]:
            raise ValueError(f"--keep and --drop both name `{both[0]}`; name it for one of them")

    def of(self, names: Iterable[str]) -> list[str]:
        """The columns that are kept among those that are there."""
        return [name for name in self.without_dropped(names) if name in self.keep or not self.keep]

    def without_dropped(self, names: Iterable[str]) -> list[str]:
        """All of them but those that were named to be dropped."""
        return [name for name in names if name not in self.drop]


ALL_COLUMNS = Selection()


CHUNK_ROWS = 2048
CHUNK_BYTES = 2 << 20
"""Text in a chunk, after which the next one begins."""


class RowSource(Protocol):
    """Where rows come from."""

    @property
    def name(self) -> str:
        """Name of the source in messages."""

    @property
    def path(self) -> str:
        """Path or URL of the source."""

    def blocks(self, wanted: Sequence[str], needed: Sequence[str], kept: Selection) -> Iterator[Block]:
        """Read the source, see `Source.blocks`."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of a file. Its bounds depend on nothing but what the file holds."""

    source: RowSource
    file: int
    """Number of the file, from 0."""
    number: int
    """Of the chunk in its file, from 0."""
    blocks: Sequence[Block]
    num_before: int = 0
    """Rows of the file before this chunk."""

    @property
    def rows(self) -> list[Row]:
        """All its rows."""
        return [row for block in self.blocks for row in block.rows]

    def share(self, num_rows: int) -> float:
        """Of the file, that was read up to so many of its rows, to the block."""
        ends = accumulate(len(block.rows) for block in self.blocks)
        return next(block.share for block, end in zip(self.blocks, ends, strict=True) if end >= num_rows)

    @property
    def digest(self) -> str:
        """Of what was read, 12 hexadecimal digits."""
        return hashlib.blake2b(b"".join(block.digest for block in self.blocks), digest_size=6).hexdigest()

    def place(self, row: Row) -> str:
        """Where a row stands, for messages."""
        return f"{self.source.name}, {row.place}"

    def row_number(self, index: int) -> int:
        """Number of a row in its file, from 1, lines that are passed over not counted."""
        return self.num_before + index + 1


def chunks_of(
    source: RowSource,
    file: int,
    wanted: Sequence[str],
    needed: Sequence[str],
    num_bytes: Callable[[Row], int],
    max_rows: int | None = None,
    kept: Selection = ALL_COLUMNS,
) -> Iterator[Chunk]:
    """Cut a file into chunks.

    Args:
        file: its number.
        wanted: as for `Source.blocks`, like `needed`.
        num_bytes: of a row's text.
        max_rows: after which the next chunk begins, rounded up to whole blocks; None for CHUNK_ROWS.
        kept: as for `Source.blocks`.
    """
    blocks: list[Block] = []
    rows = size = number = before = 0
    for block in source.blocks(wanted, needed, kept):
        blocks.append(block)
        rows += len(block.rows)
        size += sum(map(num_bytes, block.rows))
        if rows >= (max_rows or CHUNK_ROWS) or size >= CHUNK_BYTES:
            yield Chunk(source, file, number, blocks, before)
            blocks, rows, size, number, before = [], 0, 0, number + 1, before + rows
    if blocks:
        yield Chunk(source, file, number, blocks, before)


def text_bytes(value: Any) -> int:
    """Bytes of the strings in a value; a lone surrogate, which UTF-8 has not, counts as three."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    return sum(map(text_bytes, value)) if isinstance(value, list | tuple) else 0
