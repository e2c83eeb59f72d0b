"""How the results of a chunk are written, and how what was written of all chunks becomes one file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO, Protocol

import numpy as np

from bertline.jobs.operations import Operation
from bertline.jobs.pass_through import Kept
from bertline.jobs.read.formats import parquet_library, readable
from bertline.jobs.send import Asked, Rejected
from bertline.jobs.storage import File, FileError, open_read


class Sink(Protocol):
    """One format."""

    suffix: str
    """Of its files."""

    def settle(self, asked: Asked) -> None:
        """Reject rows that the format cannot hold."""

    def write(self, asked: Asked, stream: BinaryIO, about: Mapping[str, Any]) -> None:
        """Write the rows of a chunk that have results.

        Args:
            about: as for `join`.
        """

    def join(self, parts: Sequence[File], stream: BinaryIO, about: Mapping[str, Any]) -> None:
        """Write one file out of those of the chunks.

        Args:
            about: what is told in the file of where it comes from, where the format has a place for it.
        """


def good(asked: Asked) -> list[int]:
    """Rows that have results."""
    return [index for index, result in enumerate(asked.results) if not isinstance(result, Rejected)]


@dataclass
class Jsonl:
    """An object of JSON for each row."""

    operation: Operation
    kept: Kept
    suffix: str = ".jsonl"

    def settle(self, asked: Asked) -> None:
        """It holds everything."""

    def write(self, asked: Asked, stream: BinaryIO, about: Mapping[str, Any]) -> None:
        """See Sink."""
        indices = good(asked)
        for row, index in zip(self.kept.rows(asked.chunk, indices), indices, strict=True):
            stream.write(json_line({**row, **self.operation.result(asked.results[index])}))

    def join(self, parts: Sequence[File], stream: BinaryIO, about: Mapping[str, Any]) -> None:
        """See Sink."""
        copy(parts, stream)


@dataclass
class Npy:
    """The vectors as one array: that of row i in row i, of NaN where it was rejected."""

    dim: int
    """Length of the vectors; 0 for that of the first one."""
    dtype: str
    suffix: str = ".npy"

    def settle(self, asked: Asked) -> None:
        """It has a row for each row."""

    def write(self, asked: Asked, stream: BinaryIO, about: Mapping[str, Any]) -> None:
        """See Sink."""
        indices = good(asked)
        self.dim = length_of_vectors(self.dim, [asked.results[index] for index in indices])
        array = np.full((len(asked.results), self.dim), np.nan, dtype=self.dtype)
        if indices:
            array[indices] = np.stack([asked.results[index] for index in indices])
        np.lib.format.write_array(stream, array)

    def join(self, parts: Sequence[File], stream: BinaryIO, about: Mapping[str, Any]) -> None:
        """See Sink."""
        shapes = []
        for part in parts:
            with open_read(part) as (read, _):
                shapes.append(_npy_shape(read))
        dim = shapes[0][1] if shapes else self.dim  # also where no part is of this run
        shape = (sum(num_rows for num_rows, _ in shapes), dim)
        header = {"descr": np.dtype(self.dtype).str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)  # type: ignore[arg-type]
        for part in parts:
            with open_read(part) as (read, _):
                _npy_shape(read)
                stream.write(read.read())


class Parquet:
    """A table, vectors as lists of a fixed size."""

    suffix = ".parquet"

    def __init__(self, operation: Operation, kept: Kept, dim: int, dtype: str, schema: Any = None) -> None:
        """Make it.

        Args:
            schema: kept columns and their types; None for those of the first chunk.
        """
        self._operation, self._kept, self._dim, self._dtype = operation, kept, dim, dtype
        self.schema = schema
        parquet_library()

    def settle(self, asked: Asked) -> None:
        """Reject rows whose kept columns do not fit into those of the first rows."""
        from bertline.jobs import tables

        indices, chunk = good(asked), asked.chunk
        if chunk.blocks[0].table is not None:
            if self.schema is None:
                self.schema = self._kept.table(chunk, []).schema
            return
        rows = self._kept.rows(chunk, indices)
        if self.schema is None:
            if not rows:
                return  # those of the next chunk tell what columns there are
            self.schema = tables.infer(rows)
        if tables.rows_table(rows, self.schema) is None:
            for index, row in zip(indices, rows, strict=True):
                if reason := tables.misfit(row, self.schema):
                    asked.results[index] = Rejected(reason)

    def write(self, asked: Asked, stream: BinaryIO, about: Mapping[str, Any]) -> None:
        """See Sink."""
        from bertline.jobs import tables

        indices, chunk = good(asked), asked.chunk
        if chunk.blocks[0].table is not None:
            kept = tables.fitted(self._kept.table(chunk, indices), self.schema, chunk.source.name)
        else:
            kept = tables.rows_table(self._kept.rows(chunk, indices), self.schema or tables.infer([]))
        results = [asked.results[index] for index in indices]
        if self._operation.method == "embed":
            self._dim = length_of_vectors(self._dim, results)
        found = tables.results_table(self._operation, results, self._dim, self._dtype)
        table = tables.beside(kept, found).replace_schema_metadata(_metadata(about))
        with tables.writer(stream, table) as writer:
            writer.write_table(table)

    def join(self, parts: Sequence[File], stream: BinaryIO, about: Mapping[str, Any]) -> None:
        """See Sink."""
        from bertline.jobs import tables

        filled = (table for part in parts if (table := _read_table(part)).num_rows)
        if (first := next(filled, None)) is None:
            first = self._empty()
        metadata = _metadata(about)
        with tables.writer(stream, first.replace_schema_metadata(metadata)) as writer:
            for table in chain([first], filled):
                writer.write_table(table.replace_schema_metadata(metadata))

    def is_empty(self, part: File) -> bool:
        """Whether it is of rows without results."""
        with open_read(part) as (read, _), readable(f"`{part.url}`"):
            return not parquet_library().ParquetFile(read).metadata.num_rows

    def lacks_columns(self, part: File) -> bool:
        """Whether it was written when nobody knew which columns rows with results have."""
        with open_read(part) as (read, _), readable(f"`{part.url}`"):
            return parquet_library().ParquetFile(read).schema_arrow.names != self._empty().column_names

    def _empty(self) -> Any:
        """A table without rows."""
        from bertline.jobs import tables

        if self._operation.method == "embed":
            self._dim = length_of_vectors(self._dim, [])
        found = tables.results_table(self._operation, [], self._dim, self._dtype)
        return tables.beside((self.schema or tables.infer([])).empty_table(), found)


def _metadata(about: Mapping[str, Any]) -> dict[str, str]:
    return {"bertline": json.dumps(about, sort_keys=True)}


def length_of_vectors(known: int, vectors: Sequence[np.ndarray]) -> int:
    """Of the first vector, where it is not known.

    Raises:
        FileError: when there is none, or they are of several lengths.
    """
    if not known and not vectors:
        raise FileError("the length of the vectors is not known, as none came; name the model with --model")
    lengths = dict.fromkeys([*([known] if known else []), *map(len, vectors)])
    if len(lengths) > 1:
        told = " and ".join(map(str, lengths))
        raise FileError(f"vectors of {told} numbers came, of several models; name one with --model NAME/VERSION")
    return next(iter(lengths))


def _read_table(part: File) -> Any:
    with open_read(part) as (read, _), readable(f"`{part.url}`"):
        return parquet_library().read_table(read)


def _npy_shape(stream: BinaryIO) -> tuple[int, int]:
    np.lib.format.read_magic(stream)
    (num_rows, dim), _, _ = np.lib.format.read_array_header_1_0(stream)
    return num_rows, dim


def copy(parts: Iterable[File], stream: BinaryIO) -> int:
    """Write the bytes of files one after the other.

    Returns:
        How many lines they have.
    """
    num_lines = 0
    for part in parts:
        with open_read(part) as (read, _):
            while data := read.read(1 << 20):
                stream.write(data)
                num_lines += data.count(b"\n")
    return num_lines


_LINE_ENDS = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def json_line(row: Mapping[str, Any]) -> bytes:
    """A lone surrogate, possible in what is kept, is written as the JSON escape that it came as, as are the line ends
    of Unicode, at which some readers divide lines; NaN and infinities, which JSON has not, as null."""
    try:
        text = _json(row)
    except ValueError:
        text = _json(json.loads(json.dumps(row, default=_of_parquet), parse_constant=lambda name: None))
    if not text.isascii():
        for char, escape in _LINE_ENDS.items():
            text = text.replace(char, escape)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _json(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False, default=_of_parquet)


def _of_parquet(value: Any) -> Any:
    from bertline.jobs.tables import plain_json

    return plain_json(value)


def sink_suffix(name: str) -> str:
    """The format that an output's name says: `.parquet`, `.npy`, or `.jsonl`, which is that of a name without a suffix.

    Raises:
        ValueError: when it is none of these.
    """
    suffix = os.path.splitext(name.lower())[1]
    known = {"": ".jsonl", ".ndjson": ".jsonl", ".jsonl": ".jsonl", ".parquet": ".parquet", ".npy": ".npy"}
    if suffix not in known:
        raise ValueError(f"unknown format: `{name}`; its name ends in .parquet, .jsonl or .npy")
    return known[suffix]


@contextmanager
def standard_output() -> Iterator[BinaryIO]:
    """Standard output, of a reader that may leave early."""
    if sys.stdout is None:
        raise FileError("cannot write standard output: it is closed; give a file with --output")
    try:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes nowhere
        if isinstance(error, BrokenPipeError):  # the reader has seen enough, as `head` does
            sys.exit(1)
        raise FileError(f"{error.strerror}: `standard output`") from error
