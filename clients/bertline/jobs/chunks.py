"""Rows -> chunks: what is asked about, written and, after an interruption, passed over together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from bertline.jobs.blocks import Block, Row
from bertline.jobs.selection import ALL_COLUMNS, Selection
from bertline.jobs.sources import Given, Source

CHUNK_ROWS = 2048
CHUNK_BYTES = 2 << 20
"""Text in a chunk, after which the next one begins."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of a file. Its bounds depend on nothing but what the file holds."""

    source: Source | Given
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
    source: Source | Given,
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
