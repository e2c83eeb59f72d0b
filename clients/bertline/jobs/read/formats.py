"""Text, JSONL, CSV, TSV and Parquet -> rows."""

from __future__ import annotations

import codecs
import csv
import io
import json
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from bertline.jobs.read.rows import BLOCK_ROWS, Block, Row, Selection, digest_of
from bertline.jobs.storage import FileError


def read_lines(
    stream: BinaryIO, read: Callable[[str], dict[str, Any]], *, skip_empty: bool
) -> Iterator[tuple[Row, bytes]]:
    """A row a line, with the bytes of the line.

    Args:
        read: makes the row's columns out of a line, or raises ValueError; `text_columns` or `json_columns`.
        skip_empty: pass over lines without text.
    """
    for number, line in enumerate(stream, start=1):
        text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if not (skip_empty and not text.decode(errors="replace").strip()):
            yield _line_row(f"line {number}", text, read), line


def _line_row(place: str, line: bytes, read: Callable[[str], dict[str, Any]]) -> Row:
    try:
        text = line.decode().rstrip("\r\n")
        if not text.strip():
            raise ValueError("the line is empty; mend it, or leave such lines out with --skip-empty")
        if "\0" in text:
            raise ValueError("a NUL byte; the file is damaged, or UTF-16: convert it")
        return Row(place, read(text))
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 (byte 0x{line[error.start]:02x}); convert the file"
    except ValueError as error:
        reason = str(error)
    return Row(place, {"line": line.decode(errors="backslashreplace").rstrip("\r\n")}, reason)


def text_columns(text: str) -> dict[str, Any]:
    """`text`."""
    return {"text": text}


def json_columns(text: str) -> dict[str, Any]:
    """Those of an object."""
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno})") from error
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error
    if not isinstance(row, dict):
        raise ValueError(f"a JSON object is needed, a {type(row).__name__} came")
    return row


_UNCLOSED = "a quote opens a value here, and none closes it; mend it, as all lines after it are read as one value"


class Tsv(csv.excel_tab):
    """Values without quotes, which are characters as others are."""

    quoting = csv.QUOTE_NONE


def read_csv(
    stream: BinaryIO,
    name: str,
    check: Callable[[Sequence[str]], None],
    dialect: type[csv.Dialect],
    *,
    skip_empty: bool,
) -> Generator[tuple[Row, bytes], None, None]:
    """A row a line, or more of them where values are quoted, with what was read. All values are strings.

    Args:
        name: of the file, for messages.
        check: is given the names of the columns.

    Raises:
        FileError: where rows cannot be told from each other.
    """
    csv.field_size_limit(sys.maxsize)
    text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
    lines = _values(text, name, dialect)
    try:
        _, header = next(lines, (0, []))
        names = _names(header)
        check([name for name in names if name is not None])
        for number, values in lines:
            if not (skip_empty and _is_blank(values)):
                yield _csv_row(number, names, values), repr((header, values)).encode("utf-8", "surrogatepass")
    finally:
        text.detach()  # who opened the stream closes it


def _values(text: Iterable[str], name: str, dialect: type[csv.Dialect]) -> Iterator[tuple[int, list[str]]]:
    """The number of a row's last line, and the values of the row; the first row is the header."""
    lines = _LinesOfRow(text)
    reader = csv.reader(lines, dialect)
    try:
        for values in reader:
            if lines.is_unclosed(dialect):
                raise FileError(f"{name}, line {reader.line_num - len(lines.taken) + 1}: {_UNCLOSED}")
            lines.taken.clear()
            yield reader.line_num, values
    except csv.Error as error:
        raise FileError(f"{name}, line {reader.line_num}: {error}") from error


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

    def is_unclosed(self, dialect: type[csv.Dialect]) -> bool:
        """Whether the file ended within a quoted value, of which csv says nothing."""
        if not self._is_ended:
            return False
        try:
            list(csv.reader(self.taken, dialect, strict=True))
        except csv.Error as error:
            return "unexpected end of data" in str(error)
        return False


def _names(header: Sequence[str]) -> list[str | None]:
    """Names of the columns; None for several that have none, as spreadsheets write behind the last one."""
    num_blank = sum(not name.strip() for name in header)
    return [name if name.strip() or num_blank == 1 else None for name in header]


def _is_blank(values: Sequence[str]) -> bool:
    """Whether they are those of a line of white space."""
    return len(values) <= 1 and not "".join(values).strip()


def _csv_row(number: int, header: Sequence[str | None], values: Sequence[str]) -> Row:
    place = f"line {number}"
    fields = {name: value for name, value in zip(header, values, strict=False) if name is not None}
    if _is_blank(values):
        return Row(place, fields, "the line is empty; mend it, or leave such lines out with --skip-empty")
    if len(values) != len(header):
        return Row(place, {"line": list(values)}, f"{len(values)} values came, the header has {len(header)}")
    if any("\udc80" <= char <= "\udcff" for value in values if not value.isascii() for char in value):
        return Row(place, fields, "not UTF-8; convert the file")
    return Row(place, fields)


_ERRORS = (OSError, ValueError, NotImplementedError, KeyError)
"""Those of pyarrow's are of these kinds."""


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


def read_parquet(
    stream: BinaryIO, name: str, check: Callable[[Sequence[str]], None], wanted: Sequence[str], kept: Selection
) -> Iterator[Block]:
    """Rows with the columns that are wanted, as far as they are there; all others stay in the block's table.

    Args:
        name: of the file, for messages.
        check: is given the names of the columns.
        kept: which columns are kept.

    Raises:
        FileError: when the file is damaged.
    """
    library = parquet_library()
    import pyarrow

    from bertline.jobs import tables

    with readable(name):
        file = library.ParquetFile(stream)
    check(file.schema_arrow.names)
    number, total = 1, max(1, file.metadata.num_rows)
    footer = _footer(stream, file.metadata.serialized_size)  # tells of a change in any column
    there = [column for column in wanted if column in file.schema_arrow.names]
    used = list(dict.fromkeys([*there, *kept.of(file.schema_arrow.names)]))
    for batch in _batches(file, name):
        table = pyarrow.Table.from_batches([batch]).select(used)
        if tables.is_valid(table):
            fields = tables.to_inputs(table.select(there), name)
            rows = [Row(f"row {index}", values) for index, values in enumerate(fields, start=number)]
        else:
            rows = [
                _parquet_row(table.slice(index, 1), there, name, f"row {number + index}") for index in range(len(table))
            ]
        number += len(rows)
        read = repr([row.fields for row in rows]).encode("utf-8", "surrogatepass")
        yield Block(rows, digest_of([footer, read]), (number - 1) / total, batch)


def _parquet_row(table: Any, there: Sequence[str], name: str, place: str) -> Row:
    """The only row of a table, some of whose columns may hold what is not UTF-8."""
    from bertline.jobs import tables

    try:
        tables.to_rows(table, name)
        (fields,) = tables.to_inputs(table.select(there), name)
        return Row(place, fields)
    except UnicodeDecodeError:
        return Row(place, tables.escaped(table.select(there), name), "not UTF-8; convert the file")


def _batches(file: Any, name: str) -> Iterator[Any]:
    batches = file.iter_batches(BLOCK_ROWS)
    while True:
        with readable(name):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn pyarrow's errors into one that names the file."""
    try:
        yield
    except _ERRORS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise FileError(f"cannot read {name}: {reason}") from error


def _footer(stream: BinaryIO, num_bytes: int) -> bytes:
    stream.seek(-8 - num_bytes, io.SEEK_END)
    return stream.read(num_bytes)
