"""Readers of text, JSONL, CSV and TSV: one row a line. `tables` reads Parquet."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, BinaryIO, cast

from bertline.jobs.rows import Row
from bertline.jobs.storage import FileError
from bertline.jobs.write import print_error

EMPTY_LINE = "the line is empty; correct it, or skip such lines with --skip-empty"
NOT_UTF8 = "not UTF-8; convert the file"
_START_BYTES = 8192
"""Bytes at the beginning of a file that decide whether it can be read."""
_WIDE = re.compile(
    rb"(?P<UTF_32>\xff\xfe\0\0|\0\0\xfe\xff)|(?P<UTF_16>\xff\xfe|\xfe\xff)|"
    rb"(?P<UTF_16LE>(?:[^\0]\0){2})|(?P<UTF_16BE>(?:\0[^\0]){2})",
    re.DOTALL,
)
"""Beginning of a text in another encoding, by a byte order mark or two ASCII characters."""
_MAX_QUOTED_LINES = 1000
"""Maximum number of lines of a quoted value, in a TSV that may have no quotes."""


_BINARY = re.compile(rb"\A(?:%PDF-|PAR1)|[\0-\x08\x0e-\x1a\x1c-\x1f]")
"""Signs of a binary file: beginnings of formats that look like text, and control characters."""


def checked_stream(stream: BinaryIO, name: str, *, is_guessed: bool = False) -> BinaryIO:
    """Return a stream of UTF-8 text for a stream at its beginning, which the caller closes.

    Args:
        name: name of the stream for errors.
        is_guessed: True if only the lack of another format says that it is text.

    Raises:
        FileError: when the text is UTF-16 or UTF-32, as other programs write it, or a guessed one is no text.
    """
    reader = stream if hasattr(stream, "peek") else io.BufferedReader(cast(io.RawIOBase, stream))
    start = reader.peek(_START_BYTES)
    if found := _WIDE.match(start):
        encoding = str(found.lastgroup).replace("_", "-")
        raise FileError(f"{name} is {encoding}, not UTF-8; convert it: iconv -f {encoding} -t UTF-8 old.txt > new.txt")
    if is_guessed and _BINARY.search(start[:_START_BYTES]):
        raise FileError(f"{name} is a binary file of an unknown format; give --format if the client reads it")
    return cast(BinaryIO, reader)


# ---- text and JSONL


def read_lines(
    stream: BinaryIO, name: str, parse: Callable[[str], dict[str, Any]], *, skip_empty: bool, max_line_bytes: int
) -> Generator[tuple[Row, bytes], None, None]:
    """Read a row a line from a stream of `checked_stream`.

    Args:
        parse: converts a line to the fields of its row, or raises ValueError; `parse_text` or `parse_json`.

    Yields:
        Each row, with the bytes of its line.

    Raises:
        FileError: when a line is too long, or all lines end with carriage returns alone.
    """
    start = stream.peek(_START_BYTES)[:_START_BYTES].strip(b"\r\n")  # type: ignore[attr-defined]
    if b"\n" not in start and b"\r" in start:
        raise FileError(f"{name} has only carriage returns between its lines; convert it: tr '\\r' '\\n' < old > new")
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
    except (ValueError, RecursionError) as error:
        raise ValueError(
            "JSON that Python cannot read: a number has too many digits, or it is nested too deeply"
        ) from error
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    return row


# ---- CSV and TSV


class Csv(csv.excel):
    """CSV, in which quotes are doubled; or `other`, with backslashes before them."""

    strict = True
    other: Mapping[str, Any] = {"escapechar": "\\"}
    odd = re.compile(r"\\")
    """Characters that both ways read differently."""
    sure = re.compile(r'(?:^|,)[^",]*\\"')
    """Text that only the other way writes: a quote in a value without quotes around it."""
    hint = "quotes with a backslash before them, but earlier backslashes may not be escapes; write quotes twice"


class QuotedTsv(Csv):
    """TSV with quotes."""

    delimiter = "\t"
    sure = re.compile(r'(?:^|\t)[^"\t]*\\"')


class Tsv(csv.excel_tab):
    """TSV in which quotation marks are characters like others; or `other`, with quotes as pandas and Excel write it."""

    quoting = csv.QUOTE_NONE
    other: Mapping[str, Any] = {"quoting": csv.QUOTE_MINIMAL, "strict": True}
    odd = re.compile(r'(?:^|\t)"')
    sure = re.compile(r'(?:^|\t)"[^\t]*""[^\t]*"')
    hint = "a quoted value, but earlier ones may have no quotes; read the .tsv with --format csv if all are quoted"


Dialect = type[Csv] | type[Tsv]


class _Lines:
    """Iterator of lines that keeps those of a record, to read them again in another dialect."""

    def __init__(self, stream: BinaryIO, name: str, max_bytes: int) -> None:
        self._text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
        self._name, self._max_bytes, self._again = name, max_bytes, deque[str]()
        self.first, self.record = 1, list[str]()
        self.begin()

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        if self._is_trial and (len(self.record) == _MAX_QUOTED_LINES or self._num_bytes >= self._max_bytes):
            raise StopIteration
        first, num_left = self.first, self._max_bytes - self._num_bytes
        if self._is_trial:  # each line may be a record
            first, num_left = first + len(self.record), self._max_bytes
        line = self._again.popleft() if self._again else self._text.readline(num_left + 1)
        if len(line) > num_left:
            hint = " (perhaps a quote is not closed)" if first < self.first + len(self.record) else ""
            raise _too_long(self._name, first, self._max_bytes, hint)
        if not line:
            self.is_ended = True
            raise StopIteration
        self._num_bytes += len(line)
        self.record.append(line)
        return line

    def begin(self, *, again: bool = False, is_trial: bool = False) -> None:
        """Begin the next record, or this one again; in a trial it must not be long."""
        if again:
            self._again.extendleft(reversed(self.record))
        else:
            self.first += len(self.record)
        self.record, self._num_bytes, self._is_trial, self.is_ended = [], 0, is_trial, False

    def detach(self) -> None:
        """Leave the stream to the caller, who closes it."""
        self._text.detach()


def _records(lines: _Lines, name: str, dialect: Dialect) -> Iterator[list[str]]:
    """Yield the values of each record.

    The file is written in the other way if only that reads a record well, or only that writes it so, unless earlier
    records could be read in both.

    Raises:
        FileError: when quotes are wrong, or of two meanings.
    """
    reader, other = csv.reader(lines, dialect), csv.reader(lines, dialect, **dialect.other)
    is_known, num_columns, num_odd = False, 0, 0
    while (values := _values(reader, lines)) is not None:
        if not is_known and any(map(dialect.odd.search, lines.record)):
            lines.begin(again=True, is_trial=isinstance(values, list))
            found = _values(other, lines)
            fits = isinstance(found, list) and len(found) == (num_columns or len(found))
            is_sure = isinstance(values, str) or _is_sure(lines.record, dialect, num_columns)
            if fits and (is_sure or len(values) != num_columns) and not num_odd:
                reader, values, is_known = other, found or [], True
            elif fits and is_sure and isinstance(values, list):
                raise FileError(f"{name}, line {lines.first}: {dialect.hint}")
            else:
                is_known = isinstance(found, str)
                num_odd += not is_known
                lines.begin(again=True)
                _values(reader, lines)
        if isinstance(values, str):
            raise FileError(f"{name}, line {lines.first}: {values}")
        num_columns = num_columns or len(values)
        yield values
        lines.begin()
    if dialect is Tsv and num_odd:
        what = f"{name}: {num_odd:,} rows have values in quotation marks, which stay"
        print_error(f"{what}; --format csv reads a .tsv with quotes")


def _values(reader: Any, lines: _Lines) -> list[str] | str | None:
    """Return the values of a record, or what is wrong with its quotes; None at the end."""
    try:
        return next(reader, None)
    except csv.Error:
        if lines.is_ended:
            return "a quote is opened here and never closed; correct it, else all lines after it are one value"
        return 'text follows a closing quote; write a quote inside a value twice (`""`)'


def _is_sure(record: Sequence[str], dialect: Dialect, num_columns: int) -> bool:
    """Return True if only the other way writes a record, or a header."""
    if any(map(dialect.sure.search, record)):
        return True
    rows = [line.rstrip("\r\n").split("\t") for line in record] if dialect is Tsv else []
    if not num_columns:
        return bool(rows) and all(re.fullmatch('".+"', name) for row in rows for name in row)
    return any(len(row) != num_columns for row in rows)


def read_csv(
    stream: BinaryIO,
    name: str,
    check: Callable[[Sequence[str]], None],
    dialect: Dialect,
    *,
    skip_empty: bool,
    max_line_bytes: int,
) -> Generator[tuple[Row, bytes], None, None]:
    """Read rows of strings from a stream of `checked_stream`; a quoted value may span lines.

    Args:
        check: called with the names of the columns.
        max_line_bytes: maximum characters of a row.

    Yields:
        Each row, with bytes that stand for its content and the header.

    Raises:
        FileError: when a quote is not closed, text follows a closing quote, or a row is too long.
    """
    csv.field_size_limit(sys.maxsize)
    lines = _Lines(stream, name, max_line_bytes)
    records = _records(lines, name, dialect)
    try:
        header = next(records, [])
        columns = _column_names(header)
        check([column for column in columns if column is not None])
        for values in records:
            is_blank = not any(value.strip() for value in values)
            if not (skip_empty and is_blank):
                place = f"line {lines.first + len(lines.record) - 1}"
                row = _csv_row(place, columns, values, is_blank=is_blank)
                yield row, repr((header, values)).encode("utf-8", "surrogatepass")
    finally:
        lines.detach()


def _column_names(header: Sequence[str]) -> list[str | None]:
    """Return the names of the columns; None for several without a name, as spreadsheets write after the last one."""
    num_blank = sum(not name.strip() for name in header)
    return [name if name.strip() or num_blank == 1 else None for name in header]


def _csv_row(place: str, columns: Sequence[str | None], values: Sequence[str], *, is_blank: bool) -> Row:
    fields = {name: value for name, value in zip(columns, values, strict=False) if name is not None}
    if is_blank:
        return Row(place, fields, EMPTY_LINE)
    if len(values) != len(columns):
        return Row(place, {"line": list(values)}, f"{len(values)} values, but the header has {len(columns)} columns")
    if any("\udc80" <= char <= "\udcff" for value in values if not value.isascii() for char in value):
        return Row(place, fields, NOT_UTF8)
    return Row(place, fields)
