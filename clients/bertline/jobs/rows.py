"""Rows, and chunks: rows that are sent, written and skipped together."""

from __future__ import annotations

import base64
import datetime
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

BATCH_ROWS = 256
"""Rows that are read from Parquet together, and rows of a chunk that goes to standard output."""
CHUNK_ROWS = 2048
"""Rows after which a chunk ends."""
CHUNK_BYTES = 2 << 20
"""Bytes of text after which a chunk ends."""
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


class Rows(NamedTuple):
    """Rows that were read together."""

    rows: list[Row]
    content: bytes
    """Bytes that change with the rows."""
    num_bytes: int
    """Bytes of all columns."""
    fraction: Callable[[], float]
    """Returns the fraction of the file that was read."""
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
    number: int = 0
    """Index of the chunk in its file, from 0."""
    num_before: int = 0
    """Rows of the file before this chunk."""
    fractions: tuple[float, float] = (0.0, 0.0)
    """Fraction of the file before this chunk, and up to its end."""
    rows: list[Row] = field(default_factory=list)
    tables: list[Any] = field(default_factory=list)
    """All columns, for Parquet, see `Rows.table`."""
    num_bytes: int = 0
    """Bytes of all columns."""
    num_text_bytes: int = 0
    """Bytes of the texts to send."""
    results: list[Any] = field(default_factory=list)
    """For each row a result, a Rejection, or None while neither is known; empty before the rows are sent."""
    num_truncated: int = 0
    """Number of rows that the server truncated."""
    _hash: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=6))

    def add(self, read: Rows, wanted: Sequence[str]) -> None:
        """Append rows; `wanted` are the columns to send."""
        self.rows += read.rows
        if read.table is not None:
            self.tables.append(read.table)
        self.num_bytes += read.num_bytes
        for row in read.rows:
            for name in wanted:
                self.num_text_bytes += text_bytes(row.fields.get(name))
        self._hash.update(read.content)

    def is_full(self, max_rows: int | None) -> bool:
        """Return True if no more rows belong into this chunk. `max_rows` is None for CHUNK_ROWS."""
        is_long = len(self.rows) >= (max_rows or CHUNK_ROWS)
        return is_long or self.num_text_bytes >= CHUNK_BYTES or self.num_bytes >= CHUNK_TOTAL_BYTES

    def following(self) -> Chunk:
        """Return the next chunk of the file, without rows."""
        num_before, fraction = self.num_before + len(self.rows), self.fractions[1]
        return Chunk(self.name, self.path, self.file, self.number + 1, num_before, (fraction, fraction))

    @property
    def digest(self) -> str:
        """Digest of the content, 12 hexadecimal digits."""
        return str(self._hash.hexdigest())

    def fraction(self, num_rows: int) -> float:
        """Return the fraction of the file up to row `num_rows` of this chunk, as if all rows were equally long."""
        before, end = self.fractions
        return before + (end - before) * num_rows / max(1, len(self.rows))

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


def text_bytes(value: Any) -> int:
    """Return the UTF-8 bytes of the strings in a value; a lone surrogate counts as three."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    return sum(map(text_bytes, value)) if isinstance(value, list | tuple) else 0


def plain(value: Any) -> Any:
    """Return a string or number for a value of Parquet that JSON has no type for."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return value.total_seconds() if isinstance(value, datetime.timedelta) else str(value)
