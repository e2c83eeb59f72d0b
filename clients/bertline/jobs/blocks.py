"""Rows as they are read: a block at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

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
