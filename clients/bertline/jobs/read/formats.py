"""Readers of rows: text, JSONL, CSV, TSV and Parquet."""

from __future__ import annotations

import codecs
import csv
import io
import json
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, BinaryIO, TextIO

from bertline.jobs.read.rows import BLOCK_ROWS, Block, Row, Selection, digest_of
from bertline.jobs.storage import FileError

EMPTY_LINE = "the line is empty; correct it, or skip such lines with --skip-empty"
NOT_UTF8 = "not UTF-8; convert the file"
_JSON_TYPES = {list: "array", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}

# ---- text and JSONL


def read_lines(
    stream: BinaryIO, name: str, parse: Callable[[str], dict[str, Any]], *, skip_empty: bool, max_line_bytes: int
) -> Iterator[tuple[Row, bytes]]:
    """Read one row a line.

    Args:
        name: name of the file in messages.
        parse: converts a line to the fields of its row, or raises ValueError; `parse_text` or `parse_json`.
        skip_empty: skip lines of white space.

    Yields:
        Each row, with the bytes of its line.

    Raises:
        FileError: when a line is too long.
    """
    for number in count(1):
        line = stream.readline(max_line_bytes + 1)
        if not line:
            return
        if len(line) > max_line_bytes:
            raise _too_long(name, number, max_line_bytes)
        text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if not (skip_empty and not text.decode(errors="replace").strip()):
            yield _line_row(f"line {number}", text, parse), line


def _too_long(name: str, line: int, max_line_bytes: int, hint: str = "") -> FileError:
    return FileError(
        f"{name}, line {line}: longer than {max_line_bytes:,} bytes{hint}; correct it, or raise --max-line-bytes"
    )


def _line_row(place: str, line: bytes, parse: Callable[[str], dict[str, Any]]) -> Row:
    try:
        text = line.decode().rstrip("\r\n")
        if not text.strip():
            raise ValueError(EMPTY_LINE)
        if "\0" in text:
            raise ValueError("a NUL byte; the file is damaged, or UTF-16: convert it")
        return Row(place, parse(text))
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 (byte 0x{line[error.start]:02x}); convert the file"
    except ValueError as error:
        reason = str(error)
    return Row(place, {"line": line.decode(errors="backslashreplace").rstrip("\r\n")}, reason)


def parse_text(text: str) -> dict[str, Any]:
    """Return the line as column `text`."""
    return {"text": text}


def parse_json(text: str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ValueError: when the line is not a JSON object.
    """
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno})") from error
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    except ValueError as error:  # Python's limit
        raise ValueError("a number in the JSON has too many digits") from error
    if not isinstance(row, dict):
        raise ValueError(f"a JSON {_JSON_TYPES[type(row)]}, not a JSON object")
    return row


# ---- CSV and TSV


class Tsv(csv.excel_tab):
    """TSV without quoting: quotation marks are characters like others."""

    quoting = csv.QUOTE_NONE


def read_csv(
    stream: BinaryIO,
    name: str,
    check: Callable[[Sequence[str]], None],
    dialect: type[csv.Dialect],
    *,
    skip_empty: bool,
    max_line_bytes: int,
) -> Generator[tuple[Row, bytes], None, None]:
    """Read rows of strings; a quoted value may span lines.

    Args:
        name: name of the file in messages.
        check: called with the names of the columns.
        skip_empty: skip lines of white space.
        max_line_bytes: maximum characters of a row.

    Yields:
        Each row, with bytes that stand for its content and the header.

    Raises:
        FileError: when a quote is not closed, or a row is too long.
    """
    csv.field_size_limit(sys.maxsize)
    text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
    lines = _csv_values(_RecordedLines(text, name, max_line_bytes), name, dialect)
    try:
        _, header = next(lines, (0, []))
        columns = _column_names(header)
        check([column for column in columns if column is not None])
        for number, values in lines:
            if not (skip_empty and _is_blank(values)):
                yield _csv_row(number, columns, values), repr((header, values)).encode("utf-8", "surrogatepass")
    finally:
        text.detach()  # the caller closes the stream


def _csv_values(lines: _RecordedLines, name: str, dialect: type[csv.Dialect]) -> Iterator[tuple[int, list[str]]]:
    """Yield the last line number and the values of each row, the header first."""
    reader = csv.reader(lines, dialect)
    try:
        for values in reader:
            if lines.is_ended and _has_open_quote(lines.taken, dialect):
                first = reader.line_num - len(lines.taken) + 1
                raise FileError(
                    f"{name}, line {first}: a quote is opened here and never closed; correct it, else all lines after "
                    "it are one value"
                )
            lines.clear()
            yield reader.line_num, values
    except csv.Error as error:
        raise FileError(f"{name}, line {reader.line_num}: {error}") from error


class _RecordedLines:
    """Iterator over lines that keeps the lines of the current row, up to a maximum size."""

    def __init__(self, text: TextIO, name: str, max_size: int) -> None:
        self._text, self._name, self._max_size = text, name, max_size
        self._num_lines, self._num_left = 0, max_size
        self.is_ended = False
        self.taken: list[str] = []

    def clear(self) -> None:
        """Begin the next row."""
        self.taken.clear()
        self._num_left = self._max_size

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(self._num_left + 1)
        if not line:
            self.is_ended = True
            raise StopIteration
        self._num_left -= len(line)
        if self._num_left < 0:
            first = self._num_lines - len(self.taken) + 1
            raise _too_long(self._name, first, self._max_size, " (perhaps a quote is not closed)" * bool(self.taken))
        self._num_lines += 1
        self.taken.append(line)
        return line


def _has_open_quote(lines: Sequence[str], dialect: type[csv.Dialect]) -> bool:
    """Return True if a line that followed these would be a part of their last value."""
    *others, last = lines
    rows = list(csv.reader([*others, last.rstrip("\r\n") + "\n", "next"], dialect))
    return rows[-1] != ["next"]


def _column_names(header: Sequence[str]) -> list[str | None]:
    """Return the names of the columns; None for several without a name, as spreadsheets write after the last one."""
    num_blank = sum(not name.strip() for name in header)
    return [name if name.strip() or num_blank == 1 else None for name in header]


def _is_blank(values: Sequence[str]) -> bool:
    return len(values) <= 1 and not "".join(values).strip()


def _csv_row(number: int, columns: Sequence[str | None], values: Sequence[str]) -> Row:
    place = f"line {number}"
    fields = {name: value for name, value in zip(columns, values, strict=False) if name is not None}
    if _is_blank(values):
        return Row(place, fields, EMPTY_LINE)
    if len(values) != len(columns):
        return Row(place, {"line": list(values)}, f"{len(values)} values, but the header has {len(columns)} columns")
    if any("\udc80" <= char <= "\udcff" for value in values if not value.isascii() for char in value):
        return Row(place, fields, NOT_UTF8)
    return Row(place, fields)


# ---- Parquet

_PYARROW_ERRORS = (OSError, ValueError, NotImplementedError, KeyError)
"""Base classes of pyarrow's errors."""


def parquet_library() -> Any:
    """Import pyarrow.parquet.

    Raises:
        FileError: when it is not installed.
    """
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise FileError("Parquet needs `pyarrow`: pip install pyarrow") from error
    return pyarrow.parquet


@contextmanager
def parquet_errors(name: str) -> Iterator[None]:
    """Turn pyarrow's errors into a FileError that names the file."""
    try:
        yield
    except _PYARROW_ERRORS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise FileError(f"cannot read {name}: {reason}") from error


def read_parquet(
    stream: BinaryIO, name: str, check: Callable[[Sequence[str]], None], wanted: Sequence[str], selection: Selection
) -> Iterator[Block]:
    """Read blocks of rows. The rows hold the wanted columns that exist; the block's table holds all columns.

    Args:
        name: name of the file in messages.
        check: called with the names of the columns.
        wanted: columns that the operation reads.
        selection: columns to copy into the output.

    Raises:
        FileError: when the file is damaged.
    """
    library = parquet_library()
    import pyarrow

    from bertline.jobs import tables

    with parquet_errors(name):
        file = library.ParquetFile(stream)
    columns = file.schema_arrow.names
    check(columns)
    number, num_rows = 1, max(1, file.metadata.num_rows)
    footer = _footer(stream, file.metadata.serialized_size)  # changes with any column
    inputs = [column for column in wanted if column in columns]
    used = list(dict.fromkeys([*inputs, *selection.of(columns)]))
    for batch in _batches(file, name):
        table = pyarrow.Table.from_batches([batch]).select(used)
        if tables.is_valid(table):
            fields = tables.to_inputs(table.select(inputs), name)
            rows = [Row(f"row {index}", values) for index, values in enumerate(fields, start=number)]
        else:
            slices = enumerate((table.slice(index, 1) for index in range(len(table))), start=number)
            rows = [_parquet_row(row, inputs, name, f"row {index}") for index, row in slices]
        number += len(rows)
        content = repr([row.fields for row in rows]).encode("utf-8", "surrogatepass")
        yield Block(rows, digest_of([footer, content]), (number - 1) / num_rows, batch.nbytes, batch)


def _parquet_row(table: Any, inputs: Sequence[str], name: str, place: str) -> Row:
    """Convert a table of one row, whose strings may not be UTF-8."""
    from bertline.jobs import tables

    try:
        tables.to_rows(table, name)
        (fields,) = tables.to_inputs(table.select(inputs), name)
        return Row(place, fields)
    except UnicodeDecodeError:
        return Row(place, tables.escaped(table.select(inputs), name), NOT_UTF8)


def _batches(file: Any, name: str) -> Iterator[Any]:
    batches = file.iter_batches(BLOCK_ROWS)
    while True:
        with parquet_errors(name):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _footer(stream: BinaryIO, num_bytes: int) -> bytes:
    stream.seek(-8 - num_bytes, io.SEEK_END)
    return stream.read(num_bytes)
