"""Sources of rows: files, standard input, and the command line. A row that cannot be used carries the reason."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, BinaryIO

from bertline.jobs.read.formats import Tsv, parse_json, parse_text, read_csv, read_lines, read_parquet
from bertline.jobs.read.rows import ALL_COLUMNS, MAX_LINE_BYTES, Block, Row, Selection, blocks_of, digest_of
from bertline.jobs.storage import File, FileError, file_errors, open_read
from bertline.jobs.text_streams import text_stream


class Format(StrEnum):
    """Format of an input file."""

    text = "text"
    jsonl = "jsonl"
    csv = "csv"
    tsv = "tsv"
    parquet = "parquet"


SUFFIXES = {
    ".jsonl": Format.jsonl,
    ".ndjson": Format.jsonl,
    ".csv": Format.csv,
    ".tsv": Format.tsv,
    ".parquet": Format.parquet,
    ".pq": Format.parquet,
}
"""Formats by suffix; files with another suffix are read as text, one text a line."""

_SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons"}

STANDARD_INPUT = File(None, "-", "-")


@dataclass(frozen=True, slots=True)
class Source:
    """Input file, or standard input."""

    file: File
    format: Format
    skip_empty: bool = False
    """Skip lines of white space."""
    max_line_bytes: int = MAX_LINE_BYTES
    """Longest line; for CSV, longest row."""

    @property
    def name(self) -> str:
        """Name of the file in messages."""
        return "standard input" if self.file is STANDARD_INPUT else f"`{self.file.url}`"

    @property
    def path(self) -> str:
        """Path or URL as the user gave it, with escapes for bytes that are not UTF-8; `-` for standard input."""
        return self.file.url.encode("utf-8", "backslashreplace").decode()

    @property
    def format_key(self) -> str:
        """Format and treatment of empty lines, for the identity of a job."""
        return f"{self.format} without empty lines" if self.skip_empty else str(self.format)

    @property
    def is_file(self) -> bool:
        """True if another process can read the source again."""
        return self.file is not STANDARD_INPUT

    def blocks(
        self, wanted: Sequence[str], needed: Sequence[str], selection: Selection = ALL_COLUMNS
    ) -> Iterator[Block]:
        """See RowSource."""

        def check(columns: Sequence[str]) -> None:
            self._check(columns, needed)

        if self.format is Format.parquet:
            self._refuse_parquet()
        with file_errors(f"cannot read {self.name}", self.file), self._open() as (stream, fraction):
            if self.format is Format.parquet:
                yield from read_parquet(stream, self.name, check, wanted, selection)
                return
            text = self._text(stream)
            limits: dict[str, Any] = {"skip_empty": self.skip_empty, "max_line_bytes": self.max_line_bytes}
            if self.format in (Format.csv, Format.tsv):
                read = read_csv(text, self.name, check, self._dialect, **limits)
                with closing(read) as rows:  # before the stream is closed
                    yield from blocks_of(rows, fraction)
            else:
                parse = parse_text if self.format is Format.text else parse_json
                yield from blocks_of(read_lines(text, self.name, parse, **limits), fraction)

    @property
    def _dialect(self) -> type[csv.Dialect]:
        """Dialect of CSV and TSV. With --format csv, a `.tsv` file has quotes."""
        if self.format is Format.tsv:
            return Tsv
        return csv.excel_tab if self.file.suffixes[0] == ".tsv" else csv.excel

    def _text(self, stream: BinaryIO) -> BinaryIO:
        try:
            return text_stream(stream, self.name)
        except ValueError as error:
            raise FileError(str(error)) from error

    def _open(self) -> Any:
        return _open_standard_input() if self.file is STANDARD_INPUT else open_read(self.file)

    def _refuse_parquet(self) -> None:
        if not self.is_file:
            raise FileError("cannot read Parquet from standard input, as its end is read first; name the file")
        if self.file.suffixes[1]:
            raise FileError(f"cannot read {self.name}: Parquet is compressed inside; decompress the file")

    def _check(self, columns: Sequence[str], needed: Sequence[str]) -> None:
        for column in needed:
            if column not in columns:
                self._check_header(columns)
                found = ", ".join(f"`{name}`" for name in columns)
                raise FileError(
                    f"{self.name} has no column `{column}` (it has: {found}); name one of these with --column, --keep "
                    "or --drop"
                )
        for column in columns:
            if list(columns).count(column) > 1:
                raise FileError(f"{self.name} has more than one column `{column}`; rename one of them")

    def _check_header(self, columns: Sequence[str]) -> None:
        """Raise FileError for a header without names, and for one name with the separator of another format."""
        if not columns:
            raise FileError(f"{self.name} has no columns; name them in its first line")
        if self.format is Format.parquet or len(columns) > 1:
            return
        expected = self._dialect.delimiter
        for mark in _SEPARATORS.keys() - expected:
            if mark in columns[0]:
                right = _SEPARATORS[expected]
                hint = "use --format tsv" if mark == "\t" else f"save the file with {right}"
                raise FileError(f"{self.name} has columns separated by {_SEPARATORS[mark]}, not by {right}; {hint}")


@dataclass(frozen=True, slots=True)
class CommandLineRows:
    """Rows from the arguments of the command."""

    rows: Sequence[dict[str, Any]]
    name: str = "command line"
    path: str = ""
    format_key: str = "as it is"

    def blocks(
        self, wanted: Sequence[str], needed: Sequence[str], selection: Selection = ALL_COLUMNS
    ) -> Iterator[Block]:
        """See RowSource."""
        rows = [Row(f"input {number}", fields) for number, fields in enumerate(self.rows, start=1)]
        yield Block(rows, digest_of(repr(fields).encode("utf-8", "backslashreplace") for fields in self.rows), 1.0)


def source_of(
    file: File,
    chosen: Format | None,
    skip_empty: bool,
    default: Format | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Source:
    """Choose the format of a file.

    Args:
        chosen: format that the user gave; None to go by the name.
        skip_empty: skip lines of white space.
        default: format for names without a known suffix; None for text.
        max_line_bytes: longest line.

    Raises:
        FileError: when the file is `.json`, which may not have one object a line.
    """
    if not chosen and file.suffixes[0] == ".json":
        raise FileError(
            f"cannot read `{file.url}`: add --format jsonl if it has one JSON object a line; other JSON is not "
            "supported"
        )
    return Source(file, chosen or SUFFIXES.get(file.suffixes[0]) or default or Format.text, skip_empty, max_line_bytes)


@contextmanager
def _open_standard_input() -> Iterator[tuple[BinaryIO, Callable[[], float]]]:
    if sys.stdin is None:
        raise FileError("cannot read standard input: it is closed")
    yield sys.stdin.buffer, lambda: 0.0
