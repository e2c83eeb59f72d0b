"""CSV and TSV -> rows."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import BinaryIO

from bertline.jobs.blocks import Row
from bertline.jobs.storage import FileError

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
                yield _row(number, names, values), repr((header, values)).encode("utf-8", "surrogatepass")
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


def _row(number: int, header: Sequence[str | None], values: Sequence[str]) -> Row:
    place = f"line {number}"
    fields = {name: value for name, value in zip(header, values, strict=False) if name is not None}
    if _is_blank(values):
        return Row(place, fields, "the line is empty; mend it, or leave such lines out with --skip-empty")
    if len(values) != len(header):
        return Row(place, {"line": list(values)}, f"{len(values)} values came, the header has {len(header)}")
    if any("\udc80" <= char <= "\udcff" for value in values if not value.isascii() for char in value):
        return Row(place, fields, "not UTF-8; convert the file")
    return Row(place, fields)
