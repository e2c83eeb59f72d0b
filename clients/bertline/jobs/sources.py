"""Sources of rows: files, standard input, and the command line. A row that cannot be used carries the reason."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any
from urllib.parse import unquote

from bertline.jobs.formats import (
    Csv,
    Dialect,
    QuotedTsv,
    Tsv,
    checked_stream,
    parse_json,
    parse_text,
    read_csv,
    read_lines,
)
from bertline.jobs.rows import ALL_COLUMNS, MAX_LINE_BYTES, Chunk, Row, Rows, Selection
from bertline.jobs.storage import File, FileError, file_errors, open_read


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

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(rf"0|-?[1-9]\d{{0,17}}|{_NO_VALUE}")

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
    is_guessed: bool = False
    """True if neither the user nor the ending of the name says the format."""
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Columns that the path gives, see `partition_keys`; one of the file with the same name replaces it."""

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
    def has_types(self) -> bool:
        """True if the file has types for its columns."""
        return self.format is Format.parquet

    @property
    def is_file(self) -> bool:
        """True if another process can read the source again."""
        return self.file is not STANDARD_INPUT

    def read(self, wanted: Sequence[str], needed: Sequence[str], selection: Selection = ALL_COLUMNS) -> Iterator[Rows]:
        """Read the source.

        Args:
            wanted: columns that the operation reads, as far as they exist.
            needed: columns that must exist.
            selection: columns to copy into the output.

        Raises:
            FileError: when the source cannot be read, or a table lacks a needed column.
        """
        check = partial(self._check, needed=needed)
        with file_errors(f"cannot read {self.name}", self.file), self._open() as (stream, fraction):
            if self.format is Format.parquet:
                from bertline.jobs.parquet import read_parquet

                yield from read_parquet(stream, self.name, check, wanted, selection.of, self.keys)
                return
            text = checked_stream(stream, self.name, is_guessed=self.is_guessed)
            limits: dict[str, Any] = {"skip_empty": self.skip_empty, "max_line_bytes": self.max_line_bytes}
            if self.format in (Format.csv, Format.tsv):
                read = read_csv(text, self.name, check, self._dialect, **limits)
            else:
                read = read_lines(text, self.name, parse_text if self.format is Format.text else parse_json, **limits)
            with closing(read) as lines:  # before the stream is closed
                for row, line in lines:
                    if not row.reason:
                        row.fields |= {name: value for name, value in self.keys.items() if name not in row.fields}
                    yield Rows([row], line, len(line), fraction)

    def _open(self) -> Any:
        if self.is_file:
            return open_read(self.file)
        if self.format is Format.parquet:
            raise FileError("cannot read Parquet from standard input, as its end is read first; name the file")
        if sys.stdin is None:
            raise FileError("cannot read standard input: it is closed")
        return nullcontext((sys.stdin.buffer, lambda: 0.0))

    @property
    def _dialect(self) -> Dialect:
        """Dialect of CSV and TSV. With --format csv, a `.tsv` file has quotes."""
        if self.format is Format.tsv:
            return Tsv
        return QuotedTsv if self.file.suffixes[0] == ".tsv" else Csv

    def _check(self, columns: Sequence[str], needed: Sequence[str]) -> None:
        if repeated := [name for name in columns if list(columns).count(name) > 1]:
            raise FileError(f"{self.name} has more than one column `{repeated[0]}`; rename one of them")
        missing = [name for name in needed if name not in columns and name not in self.keys]
        if not missing:
            return
        if not columns:
            raise FileError(f"{self.name} has no columns; name them in its first line")
        marks = [mark for mark in _SEPARATORS if mark in columns[0]] if len(columns) == 1 else []
        if marks and self.format is not Format.parquet:
            right = _SEPARATORS[self._dialect.delimiter]
            hint = "use --format tsv" if marks[0] == "\t" else f"save the file with {right}"
            raise FileError(f"{self.name} has columns separated by {_SEPARATORS[marks[0]]}, not by {right}; {hint}")
        found = ", ".join(f"`{name}`" for name in columns)
        raise FileError(
            f"{self.name} has no column `{missing[0]}` (it has: {found}); name one of these with --column, --keep or "
            "--drop"
        )


@dataclass(frozen=True, slots=True)
class CommandLineRows:
    """Rows from the arguments of the command."""

    rows: Sequence[dict[str, Any]]
    name: str = "command line"
    path: str = ""
    format_key: str = "as it is"
    is_file: bool = False

    def read(self, wanted: Sequence[str], needed: Sequence[str], selection: Selection = ALL_COLUMNS) -> Iterator[Rows]:
        """See Source."""
        numbered = [Row(f"input {number}", fields) for number, fields in enumerate(self.rows, start=1)]
        yield Rows(numbered, repr(self.rows).encode("utf-8", "backslashreplace"), 0, lambda: 1.0)


def source_of(
    file: File,
    chosen: Format | None,
    skip_empty: bool,
    default: Format | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Source:
    """Choose the format of a file: the one that the user gave, or by the name.

    Args:
        default: format for names without a known suffix; None for text.

    Raises:
        FileError: when the file is `.json`, which may not have one object a line.
    """
    if not chosen and file.suffixes[0] == ".json":
        raise FileError(
            f"cannot read `{file.url}`: add --format jsonl if it has one JSON object a line; other JSON is not "
            "supported"
        )
    suffix = file.suffixes[0]
    found = chosen or SUFFIXES.get(suffix) or default or Format.text
    is_guessed = not chosen and suffix not in (*SUFFIXES, ".txt")
    return Source(file, found, skip_empty, max_line_bytes, is_guessed)


def partition_keys(files: Sequence[File]) -> list[dict[str, Any]]:
    """Return the columns that folders named `key=value`, as Hive and Spark write them, give the rows of each file.

    The values of a key are integers if all of them are written as such (`1`, not `01`), else text.
    """
    pairs = [re.findall(r"(?:^|/)([^/=?]+)=([^/]*)(?=/)", Source(file, Format.text).path) for file in files]
    found = [{unquote(key): unquote(value) for key, value in item} for item in pairs]
    texts = {key for item in found for key, value in item.items() if not _INTEGER.fullmatch(value)}

    def typed(key: str, value: str) -> Any:
        if value == _NO_VALUE:
            return None
        return value if key in texts else int(value)

    return [{key: typed(key, value) for key, value in item.items()} for item in found]


def chunks_of(
    source: Source | CommandLineRows,
    file: int,
    wanted: Sequence[str],
    needed: Sequence[str],
    selection: Selection = ALL_COLUMNS,
    max_rows: int | None = None,
) -> Iterator[Chunk]:
    """Group the rows of source number `file` into chunks of `max_rows`; None for CHUNK_ROWS. See `Source.read`."""
    chunk = Chunk(source.name, source.path, file)
    for read in source.read(wanted, needed, selection):
        chunk.add(read, wanted)
        if chunk.is_full(max_rows):
            chunk.fractions = (chunk.fractions[0], read.fraction())
            yield chunk
            chunk = chunk.following()
    if chunk.rows:
        chunk.fractions = (chunk.fractions[0], 1.0)
        yield chunk
