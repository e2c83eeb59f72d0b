"""Files -> blocks of rows. What is wrong with a row is noted on it; the rows around it are read all the same."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, BinaryIO

from bertline.jobs.read.formats import Tsv, json_columns, read_csv, read_lines, read_parquet, text_columns
from bertline.jobs.read.rows import ALL_COLUMNS, Block, Row, Selection, blocks_of, digest_of
from bertline.jobs.storage import File, FileError, open_read, told
from bertline.jobs.text_streams import text_stream


class Format(StrEnum):
    """How an input file is read."""

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
"""Formats by the end of a file's name; anything else is text, a text a line."""


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
    def path(self) -> str:
        """Path or URL, as it was given, with escapes for what is not UTF-8; `-` for standard input."""
        return self.file.url.encode("utf-8", "backslashreplace").decode()

    @property
    def how(self) -> str:
        """In which way it is read."""
        return f"{self.format} without empty lines" if self.skip_empty else str(self.format)

    @property
    def is_file(self) -> bool:
        """Whether another process can read it as well."""
        return self.file is not STANDARD_INPUT

    def blocks(self, wanted: Sequence[str], needed: Sequence[str], kept: Selection = ALL_COLUMNS) -> Iterator[Block]:
        """Read it.

        Args:
            wanted: columns that rows should have.
            needed: those of them without which no row can be used.
            kept: which columns are kept.

        Raises:
            FileError: when the file cannot be read, or is of a kind where all rows lack what one lacks.
        """

        def check(names: Sequence[str]) -> None:
            self._check(names, needed)

        if self.format is Format.parquet:
            self._refuse_parquet()
        with told(f"cannot read {self.name}", self.file), self._open() as (stream, share):
            if self.format is Format.parquet:
                yield from read_parquet(stream, self.name, check, wanted, kept)
                return
            text = self._text(stream)
            if self.format in (Format.csv, Format.tsv):
                read = read_csv(text, self.name, check, self._dialect, skip_empty=self.skip_empty)
                with closing(read) as rows:  # before the stream is
                    yield from blocks_of(rows, share)
            else:
                columns = text_columns if self.format is Format.text else json_columns
                yield from blocks_of(read_lines(text, columns, skip_empty=self.skip_empty), share)

    @property
    def _dialect(self) -> type[csv.Dialect]:
        """Of a table as text; a `.tsv` that is read as CSV has quotes."""
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
            raise FileError(f"cannot read {self.name}: Parquet is compressed inside; unpack it")

    def _check(self, names: Sequence[str], needed: Sequence[str]) -> None:
        for column in needed:
            if column not in names:
                there = ", ".join(f"`{name}`" for name in names) or "none"
                raise FileError(
                    f"{self.name} has no column `{column}` (it has: {there}); name one of these with --column, --keep "
                    "or --drop"
                )
        for name in names:
            if list(names).count(name) > 1:
                raise FileError(f"{self.name} has more than one column `{name}`")


@dataclass(frozen=True, slots=True)
class Given:
    """Rows of the command line."""

    rows: Sequence[dict[str, Any]]
    name: str = "command line"
    path: str = ""
    how: str = "as it is"

    def blocks(self, wanted: Sequence[str], needed: Sequence[str], kept: Selection = ALL_COLUMNS) -> Iterator[Block]:
        """All of them, as `Source.blocks`."""
        rows = [Row(f"input {number}", fields) for number, fields in enumerate(self.rows, start=1)]
        yield Block(rows, digest_of(repr(fields).encode("utf-8", "backslashreplace") for fields in self.rows), 1.0)


STANDARD_INPUT = File(None, "-", "-")


def source_of(file: File, chosen: Format | None, skip_empty: bool, plain: Format | None = None) -> Source:
    """A file, read as asked for, or as its name says.

    Args:
        plain: how to read what has no telling name; None for as text.

    Raises:
        FileError: when the name says what cannot be read unless it was asked for.
    """
    if not chosen and file.suffixes[0] == ".json":
        raise FileError(f"cannot read `{file.url}`: an object a line is read with --format jsonl, other JSON is not")
    return Source(file, chosen or SUFFIXES.get(file.suffixes[0]) or plain or Format.text, skip_empty)


@contextmanager
def _open_standard_input() -> Iterator[tuple[BinaryIO, Callable[[], float]]]:
    if sys.stdin is None:
        raise FileError("cannot read standard input: it is closed")
    yield sys.stdin.buffer, lambda: 0.0
