"""Files -> blocks of rows. What is wrong with a row is noted on it; the rows around it are read all the same."""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, BinaryIO

from bertline.jobs.storage import File, FileError, open_read, told

BLOCK_ROWS = 256
"""Rows that are read at one time."""


class Format(StrEnum):
    """How an input file is read."""

    text = "text"
    jsonl = "jsonl"
    csv = "csv"
    parquet = "parquet"


SUFFIXES = {
    ".jsonl": Format.jsonl,
    ".ndjson": Format.jsonl,
    ".csv": Format.csv,
    ".tsv": Format.csv,
    ".parquet": Format.parquet,
    ".pq": Format.parquet,
}
"""Formats by the end of a file's name; anything else is text, a text a line."""


_PARQUET_ERRORS = (OSError, ValueError, NotImplementedError, KeyError)
"""Those of pyarrow's are of these kinds."""
_UNCLOSED = "a quote opens a value here, and none closes it; mend it, as all lines after it are read as one value"


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


@dataclass(frozen=True, slots=True)
class Source:
    """A file to read."""

    file: File
    format: Format
    skip_empty: bool = False
    """Pass over lines without text."""

    @property
    def name(self) -> str:
        """For messages."""
        return "standard input" if self.file is STANDARD_INPUT else f"`{self.file.url}`"

    @property
    def how(self) -> str:
        """In which way it is read."""
        return f"{self.format} without empty lines" if self.skip_empty else str(self.format)

    @property
    def is_file(self) -> bool:
        """Whether another process can read it as well."""
        return self.file is not STANDARD_INPUT

    def blocks(self, wanted: Sequence[str], needed: Sequence[str]) -> Iterator[Block]:
        """Read it.

        Args:
            wanted: columns that rows should have.
            needed: those of them without which no row can be used.

        Raises:
            FileError: when the file cannot be read, or is of a kind where all rows lack what one lacks.
        """
        if self.format is Format.parquet:
            yield from self._parquet(wanted, needed)
            return
        with told(f"cannot read {self.name}"), self._open() as (stream, share):
            if self.format is Format.csv:
                yield from _blocks(self._csv_rows(stream, needed), share)
            else:
                read = _read_text if self.format is Format.text else _read_json
                yield from _blocks(self._lines(stream, read), share)

    def _open(self) -> Any:
        return _open_standard_input() if self.file is STANDARD_INPUT else open_read(self.file)

    def _lines(self, stream: BinaryIO, read: Callable[[str], dict[str, Any]]) -> Iterator[tuple[Row, bytes]]:
        with told(f"cannot read {self.name}"):
            for number, line in enumerate(stream, start=1):
                text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if not (self.skip_empty and not line.strip()):
                    yield _row(f"line {number}", text, read), line

    def _csv_rows(self, stream: BinaryIO, needed: Sequence[str]) -> Iterator[tuple[Row, bytes]]:
        csv.field_size_limit(sys.maxsize)
        text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
        lines = _LinesOfRow(text)
        delimiter = "\t" if self.file.suffixes[0] == ".tsv" else ","
        reader = csv.reader(lines, delimiter=delimiter)
        try:
            header = next(reader, [])
            self._check(header, needed)
            while (values := next(reader, None)) is not None:
                if lines.is_unclosed(delimiter):
                    raise FileError(f"{self.name}, line {reader.line_num - len(lines.taken) + 1}: {_UNCLOSED}")
                if values or not self.skip_empty:
                    yield _csv_row(reader.line_num, header, values), repr(values).encode("utf-8", "surrogatepass")
                lines.taken.clear()
        except csv.Error as error:
            raise FileError(f"{self.name}, line {reader.line_num}: {error}") from error
        finally:
            text.detach()  # who opened the stream closes it

    def _parquet(self, wanted: Sequence[str], needed: Sequence[str]) -> Iterator[Block]:
        library = parquet_library()
        import pyarrow

        from bertline.jobs import plain

        if not self.is_file:
            raise FileError("cannot read Parquet from standard input, as its end is read first; name the file")
        if self.file.suffixes[1]:
            raise FileError(f"cannot read {self.name}: Parquet is compressed inside; unpack it")
        with told(f"cannot read {self.name}"), open_read(self.file) as (stream, _):
            file = self._parquet_file(library, stream)
            self._check(file.schema_arrow.names, needed)
            number, total = 0, max(1, file.metadata.num_rows)
            footer = _footer(stream, file.metadata.serialized_size)  # tells of a change in any column
            there = [name for name in wanted if name in file.schema_arrow.names]
            for batch in self._batches(file):
                texts = pyarrow.Table.from_batches([batch]).select(there)
                fields = plain.to_inputs(texts, self.name)
                rows = [Row(f"row {number + index}", values) for index, values in enumerate(fields, start=1)]
                number += len(rows)
                yield Block(
                    rows, _digest([footer, repr(fields).encode("utf-8", "surrogatepass")]), number / total, batch
                )

    def _parquet_file(self, library: Any, stream: BinaryIO) -> Any:
        try:
            return library.ParquetFile(stream)
        except _PARQUET_ERRORS as error:
            raise self._unreadable(error) from error

    def _batches(self, file: Any) -> Iterator[Any]:
        try:
            yield from file.iter_batches(BLOCK_ROWS)
        except _PARQUET_ERRORS as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> FileError:
        return FileError(f"cannot read {self.name}: {(str(error).splitlines() or [type(error).__name__])[0]}")

    def _check(self, names: Sequence[str], needed: Sequence[str]) -> None:
        for column in needed:
            if column not in names:
                there = ", ".join(f"`{name}`" for name in names) or "none"
                raise FileError(
                    f"{self.name} has no column `{column}` (it has: {there}); name one with --column or --keep"
                )
        for name in names:
            if list(names).count(name) > 1:
                raise FileError(f"{self.name} has more than one column `{name}`")


@dataclass(frozen=True, slots=True)
class Given:
    """Rows of the command line."""

    rows: Sequence[dict[str, Any]]
    name: str = "command line"
    how: str = "as it is"

    def blocks(self, wanted: Sequence[str], needed: Sequence[str]) -> Iterator[Block]:
        """All of them, as `Source.blocks`."""
        rows = [Row(f"input {number}", fields) for number, fields in enumerate(self.rows, start=1)]
        yield Block(rows, _digest(repr(fields).encode("utf-8", "backslashreplace") for fields in self.rows), 1.0)


STANDARD_INPUT = File(None, "-", "-")


def source_of(file: File, chosen: Format | None, skip_empty: bool, plain: Format | None = None) -> Source:
    """A file, read as asked for, or as its name says.

    Args:
        plain: how to read what has no telling name; None for as text.
    """
    return Source(file, chosen or SUFFIXES.get(file.suffixes[0]) or plain or Format.text, skip_empty)


def parquet_library() -> Any:
    """pyarrow.parquet.

    Raises:
        FileError: when it is not installed.
    """
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise FileError("Parquet needs `pyarrow`: pip install 'bertline[cli]'") from error
    return pyarrow.parquet


@contextmanager
def _open_standard_input() -> Iterator[tuple[BinaryIO, Callable[[], float]]]:
    if sys.stdin is None:
        raise FileError("cannot read standard input: it is closed")
    yield sys.stdin.buffer, lambda: 0.0


class _LinesOfRow:
    """Lines of CSV, and which of them the row took that is read."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self._is_ended = False
        self.taken: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines, None)
        if line is None:
            self._is_ended = True
            raise StopIteration
        self.taken.append(line)
        return line

    def is_unclosed(self, delimiter: str) -> bool:
        """Whether the file ended within a quoted value, of which csv says nothing."""
        if not self._is_ended:
            return False
        try:
            list(csv.reader(self.taken, delimiter=delimiter, strict=True))
        except csv.Error as error:
            return "unexpected end of data" in str(error)
        return False


def _footer(stream: BinaryIO, num_bytes: int) -> bytes:
    stream.seek(-8 - num_bytes, io.SEEK_END)
    return stream.read(num_bytes)


def _blocks(rows: Iterable[tuple[Row, bytes]], share: Callable[[], float]) -> Iterator[Block]:
    source = iter(rows)
    while taken := list(islice(source, BLOCK_ROWS)):
        yield Block([row for row, _ in taken], _digest(raw for _, raw in taken), share())


def _digest(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _row(place: str, line: bytes, read: Callable[[str], dict[str, Any]]) -> Row:
    try:
        text = line.decode().rstrip("\r\n")
        if not text.strip():
            raise ValueError("the line is empty; mend it, or leave such lines out with --skip-empty")
        return Row(place, read(text))
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 (byte 0x{line[error.start]:02x}); convert the file"
    except ValueError as error:
        reason = str(error)
    return Row(place, {"line": line.decode(errors="backslashreplace").rstrip("\r\n")}, reason)


def _read_text(text: str) -> dict[str, Any]:
    return {"text": text}


def _read_json(text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno})") from error
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error
    if not isinstance(row, dict):
        raise ValueError(f"a JSON object is needed, a {type(row).__name__} came")
    return row


def _csv_row(number: int, header: Sequence[str], values: Sequence[str]) -> Row:
    place, fields = f"line {number}", dict(zip(header, values, strict=False))
    if not values:
        return Row(place, fields, "the line is empty; mend it, or leave such lines out with --skip-empty")
    if len(values) != len(header):
        return Row(place, {"line": list(values)}, f"{len(values)} values came, the header has {len(header)}")
    if any("\udc80" <= char <= "\udcff" for value in values if not value.isascii() for char in value):
        return Row(place, fields, "not UTF-8; convert the file")
    return Row(place, fields)
