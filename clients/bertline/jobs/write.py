"""Writers of results: one part file a chunk, and all parts joined to one file."""

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
from bertline.jobs.pass_through import PassThrough
from bertline.jobs.read.formats import parquet_errors, parquet_library
from bertline.jobs.send import ChunkResults, Rejection
from bertline.jobs.storage import File, FileError, open_read


class Writer(Protocol):
    """Writer of one output format."""

    suffix: str
    """Suffix of its files."""

    def prepare(self, results: ChunkResults) -> None:
        """Reject rows that the format cannot hold."""

    def write(self, results: ChunkResults, stream: BinaryIO, metadata: Mapping[str, Any]) -> None:
        """Write the rows of a chunk that have results.

        Args:
            metadata: see `join`.
        """

    def join(self, parts: Sequence[File], stream: BinaryIO, metadata: Mapping[str, Any]) -> None:
        """Write the rows of all parts as one file.

        Args:
            metadata: description of the job, for formats that have a place for it.
        """


def _answered(results: ChunkResults) -> list[int]:
    """Return the indices of the rows that have results."""
    return [index for index, result in enumerate(results.results) if not isinstance(result, Rejection)]


@dataclass
class JsonlWriter:
    """One JSON object a row."""

    operation: Operation
    pass_through: PassThrough
    suffix: str = ".jsonl"

    def prepare(self, results: ChunkResults) -> None:
        """Do nothing: JSON holds rows of any kind."""

    def write(self, results: ChunkResults, stream: BinaryIO, metadata: Mapping[str, Any]) -> None:
        """See Writer."""
        indices = _answered(results)
        for row, index in zip(self.pass_through.rows(results.chunk, indices), indices, strict=True):
            stream.write(json_line({**row, **self.operation.result(results.results[index])}))

    def join(self, parts: Sequence[File], stream: BinaryIO, metadata: Mapping[str, Any]) -> None:
        """See Writer."""
        copy(parts, stream)


@dataclass
class NpyWriter:
    """One array of all vectors [rows, dim]; NaN in rows that were rejected, and 0 if the numbers are whole."""

    dim: int
    """Length of the vectors; 0 until the first one is known."""
    dtype: str
    suffix: str = ".npy"

    def prepare(self, results: ChunkResults) -> None:
        """Do nothing: every row has a place in the array."""

    def write(self, results: ChunkResults, stream: BinaryIO, metadata: Mapping[str, Any]) -> None:
        """See Writer."""
        indices = _answered(results)
        self.dim = vector_dim(self.dim, [results.results[index] for index in indices])
        missing = np.nan if np.dtype(self.dtype).kind == "f" else 0
        array = np.full((len(results.results), self.dim), missing, dtype=self.dtype)
        if indices:
            array[indices] = np.stack([results.results[index] for index in indices])
        np.lib.format.write_array(stream, array)

    def join(self, parts: Sequence[File], stream: BinaryIO, metadata: Mapping[str, Any]) -> None:
        """See Writer."""
        shapes = []
        for part in parts:
            with open_read(part) as (read, _):
                shapes.append(_npy_shape(read))
        dim = shapes[0][1] if shapes else self.dim  # this run may have written no part
        shape = (sum(num_rows for num_rows, _ in shapes), dim)
        header = {"descr": np.dtype(self.dtype).str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)  # type: ignore[arg-type]
        for part in parts:
            with open_read(part) as (read, _):
                _npy_shape(read)
                stream.write(read.read())


class ParquetWriter:
    """Table with the pass-through columns and the results; vectors are lists of a fixed size."""

    suffix = ".parquet"

    def __init__(self, operation: Operation, pass_through: PassThrough, dim: int, dtype: str) -> None:
        self._operation, self._pass_through, self._dim, self._dtype = operation, pass_through, dim, dtype
        self.schema: Any = None
        """Pass-through columns and their types; None until rows with results are known."""
        parquet_library()

    def prepare(self, results: ChunkResults) -> None:
        """Reject rows whose pass-through columns do not have the types of the first rows."""
        from bertline.jobs import tables

        indices, chunk = _answered(results), results.chunk
        if chunk.blocks[0].table is not None:
            if self.schema is None:
                self.schema = self._pass_through.table(chunk, []).schema
            return
        rows = self._pass_through.rows(chunk, indices)
        if self.schema is None:
            if not rows:
                return  # the next chunk decides on the columns
            self.schema = tables.infer(rows)
        if tables.rows_table(rows, self.schema) is None:
            for index, row in zip(indices, rows, strict=True):
                if reason := tables.mismatch(row, self.schema):
                    results.results[index] = Rejection(reason)

    def write(self, results: ChunkResults, stream: BinaryIO, metadata: Mapping[str, Any]) -> None:
        """See Writer."""
        from bertline.jobs import tables

        indices, chunk = _answered(results), results.chunk
        if chunk.blocks[0].table is not None:
            passed = tables.with_schema(self._pass_through.table(chunk, indices), self.schema, chunk.source.name)
        else:
            passed = tables.rows_table(self._pass_through.rows(chunk, indices), self.schema or tables.infer([]))
        found = [results.results[index] for index in indices]
        if self._operation.method == "embed":
            self._dim = vector_dim(self._dim, found)
        table = tables.side_by_side(passed, tables.results_table(self._operation, found, self._dim, self._dtype))
        table = table.replace_schema_metadata(_metadata(metadata))
        with tables.parquet_writer(stream, table) as writer:
            writer.write_table(table)

    def join(self, parts: Sequence[File], stream: BinaryIO, metadata: Mapping[str, Any]) -> None:
        """See Writer."""
        from bertline.jobs import tables

        filled = (table for part in parts if (table := _read_table(part)).num_rows)
        first = next(filled, None)
        if first is None:
            first = self._empty()
        encoded = _metadata(metadata)
        with tables.parquet_writer(stream, first.replace_schema_metadata(encoded)) as writer:
            for table in chain([first], filled):
                writer.write_table(table.replace_schema_metadata(encoded))

    def is_empty(self, part: File) -> bool:
        """Return True if a part has no rows."""
        with open_read(part) as (read, _), parquet_errors(f"`{part.url}`"):
            return not parquet_library().ParquetFile(read).metadata.num_rows

    def lacks_columns(self, part: File) -> bool:
        """Return True if a part was written before the columns were known."""
        with open_read(part) as (read, _), parquet_errors(f"`{part.url}`"):
            return parquet_library().ParquetFile(read).schema_arrow.names != self._empty().column_names

    def _empty(self) -> Any:
        """Return a table without rows."""
        from bertline.jobs import tables

        if self._operation.method == "embed":
            self._dim = vector_dim(self._dim, [])
        found = tables.results_table(self._operation, [], self._dim, self._dtype)
        return tables.side_by_side((self.schema or tables.infer([])).empty_table(), found)


def _metadata(values: Mapping[str, Any]) -> dict[str, str]:
    return {"bertline": json.dumps(values, sort_keys=True)}


def vector_dim(known: int, vectors: Sequence[np.ndarray]) -> int:
    """Return the length of vectors.

    Args:
        known: their length if it is known; else 0.

    Raises:
        FileError: when there are no vectors and the length is unknown, or when lengths differ.
    """
    if not known and not vectors:
        raise FileError("the length of the vectors is unknown, as no row has a result; name the model with --model")
    lengths = dict.fromkeys([*([known] if known else []), *map(len, vectors)])
    if len(lengths) > 1:
        found = " and ".join(map(str, lengths))
        raise FileError(f"vectors have different lengths ({found}): several models answered; name one with --model")
    return next(iter(lengths))


def _read_table(part: File) -> Any:
    with open_read(part) as (read, _), parquet_errors(f"`{part.url}`"):
        return parquet_library().read_table(read)


def _npy_shape(stream: BinaryIO) -> tuple[int, int]:
    np.lib.format.read_magic(stream)
    (num_rows, dim), _, _ = np.lib.format.read_array_header_1_0(stream)
    return num_rows, dim


def copy(parts: Iterable[File], stream: BinaryIO) -> int:
    """Concatenate files.

    Returns:
        Number of lines.
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
    """Encode an object as one line of JSON.

    Lone surrogates become escapes, as do Unicode line ends, at which some readers split lines. NaN and infinities,
    which JSON does not have, become null.
    """
    try:
        text = _json(row)
    except ValueError:
        text = _json(json.loads(json.dumps(row, default=_from_parquet), parse_constant=lambda name: None))
    if not text.isascii():
        for char, escape in _LINE_ENDS.items():
            text = text.replace(char, escape)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _json(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False, default=_from_parquet)


def _from_parquet(value: Any) -> Any:
    from bertline.jobs.tables import plain_json

    return plain_json(value)


def format_of(name: str) -> str:
    """Return the output format for a file name: `.parquet`, `.npy` or `.jsonl`, also for a name without a suffix.

    Raises:
        ValueError: when the suffix is another one.
    """
    suffix = os.path.splitext(name.lower())[1]
    known = {"": ".jsonl", ".ndjson": ".jsonl", ".jsonl": ".jsonl", ".parquet": ".parquet", ".npy": ".npy"}
    if suffix not in known:
        raise ValueError(f"unknown output format: `{name}`; use a name that ends in .parquet, .jsonl or .npy")
    return known[suffix]


@contextmanager
def standard_output() -> Iterator[BinaryIO]:
    """Open standard output, whose reader may close it early.

    Raises:
        FileError: when it cannot be written.
    """
    if sys.stdout is None:
        raise FileError("cannot write standard output: it is closed; name a file with --output")
    try:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discard what is still buffered
        if isinstance(error, BrokenPipeError):  # the reader has read enough, like `head`
            sys.exit(1)
        raise FileError(f"{error.strerror}: `standard output`") from error
