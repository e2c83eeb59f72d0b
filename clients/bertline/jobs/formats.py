"""Readers of text, JSONL, CSV and TSV: one row a line. `tables` reads Parquet."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import count
from typing import Any, BinaryIO, cast

from bertline.jobs.rows import Row
from bertline.jobs.storage import FileError

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


_BINARY = re.compile(rb"\A(?:%PDF-|PAR1)|[\0-\x08\x0e-\x1a\x1c-\x1f]")
"""What no text has: the beginnings of binary formats that look like text, and control characters."""


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
    start = stream.peek(_START_BYTES)[:_START_BYTES]  # type: ignore[attr-defined]
    if b"\n" not in start and b"\r" in start.rstrip(b"\r"):
        raise FileError(f"{name} has no line feeds, only carriage returns; convert it: tr '\\r' '\\n' < old > new")
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
    """Read rows of strings from a stream of `checked_stream`; a quoted value may span lines.

    Args:
        check: called with the names of the columns.
        max_line_bytes: maximum characters of a row.

    Yields:
        Each row, with bytes that stand for its content and the header.

    Raises:
        FileError: when a quote is not closed, or a row is too long.
    """
    csv.field_size_limit(sys.maxsize)
    text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
    first, num_left, is_ended = 1, max_line_bytes, False

    def lines() -> Iterator[str]:
        nonlocal num_left, is_ended
        while line := text.readline(num_left + 1):
            num_left -= len(line)
            if num_left < 0:
                hint = " (perhaps a quote is not closed)" if reader.line_num >= first else ""
                raise _too_long(name, first, max_line_bytes, hint)
            yield line
        is_ended = True

    reader = csv.reader(lines(), dialect)
    header: list[str] | None = None
    columns: list[str | None] = []
    try:
        for values in reader:
            if is_ended:  # the reader asked for another line
                raise FileError(
                    f"{name}, line {first}: a quote is opened here and never closed; correct it, else all lines "
                    "after it are one value"
                )
            first, num_left = reader.line_num + 1, max_line_bytes
            is_blank = len(values) <= 1 and not "".join(values).strip()
            if header is None:
                header, columns = values, _column_names(values)
                check([column for column in columns if column is not None])
            elif not (skip_empty and is_blank):
                row = _csv_row(f"line {reader.line_num}", columns, values, is_blank=is_blank)
                yield row, repr((header, values)).encode("utf-8", "surrogatepass")
        if header is None:
            check([])
    except csv.Error as error:
        raise FileError(f"{name}, line {reader.line_num}: {error}") from error
    finally:
        text.detach()  # the caller closes the stream


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
