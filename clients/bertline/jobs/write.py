"""Writers of results: one part file a chunk, and all parts joined to one file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, BinaryIO

import numpy as np

from bertline.jobs.columns import PassThrough
from bertline.jobs.operations import Operation
from bertline.jobs.rows import ChunkResults, Rejection
from bertline.jobs.sources import parquet_library
from bertline.jobs.storage import File, FileError, open_read


class Writer:
    """Writer of one output format."""

    suffix: str
    """Suffix of its files."""

    def prepare(self, results: ChunkResults) -> Any:
        """Reject rows that the format cannot hold, and return what `write` writes."""
        return results

    def write(self, prepared: Any, stream: BinaryIO) -> None:
        """Write the rows of a chunk that have results."""
        raise NotImplementedError

    def join(self, parts: Sequence[File], stream: BinaryIO) -> None:
        """Write the rows of all parts as one file."""
        raise NotImplementedError


class JsonlWriter(Writer):
    """One JSON object a row."""

    suffix = ".jsonl"

    def __init__(self, operation: Operation, pass_through: PassThrough) -> None:
        self._operation, self._pass_through = operation, pass_through

    def write(self, prepared: ChunkResults, stream: BinaryIO) -> None:
        """See Writer."""
        results, indices = prepared, prepared.answered()
        for row, index in zip(self._pass_through.rows(results.chunk, indices), indices, strict=True):
            stream.write(json_line({**row, **self._operation.result(results.results[index])}))

    def join(self, parts: Sequence[File], stream: BinaryIO) -> None:
        """See Writer."""
        for part in parts:
            with open_read(part) as (read, _):
                copy(read, stream)


class NpyWriter(Writer):
    """One array of all vectors [rows, dim]; NaN in rows that were rejected, and 0 if the numbers are whole."""

    suffix = ".npy"

    def __init__(self, dim: int, dtype: str) -> None:
        self._dim, self._dtype = dim, dtype

    def write(self, prepared: ChunkResults, stream: BinaryIO) -> None:
        """See Writer."""
        results, indices = prepared, prepared.answered()
        vectors = [results.results[index] for index in indices]
        self._dim = vector_dim(self._dim, vectors)
        missing = np.nan if np.dtype(self._dtype).kind == "f" else 0
        array = np.full((len(results.results), self._dim), missing, dtype=self._dtype)
        if indices:
            array[indices] = np.stack(vectors)
        np.lib.format.write_array(stream, array)

    def join(self, parts: Sequence[File], stream: BinaryIO) -> None:
        """See Writer."""
        shapes = []
        for part in parts:
            with open_read(part) as (read, _):
                shapes.append(_npy_shape(read))
        dim = shapes[0][1] if shapes else self._dim  # this run may have written no part
        shape = (sum(num_rows for num_rows, _ in shapes), dim)
        header = {"descr": np.dtype(self._dtype).str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)  # type: ignore[arg-type]
        for part in parts:
            with open_read(part) as (read, _):
                _npy_shape(read)
                copy(read, stream)


def _npy_shape(stream: BinaryIO) -> tuple[int, int]:
    np.lib.format.read_magic(stream)
    (num_rows, dim), _, _ = np.lib.format.read_array_header_1_0(stream)
    return num_rows, dim


class ParquetWriter(Writer):
    """Table with the pass-through columns and the results; vectors are lists of a fixed size."""

    suffix = ".parquet"

    def __init__(
        self, operation: Operation, pass_through: PassThrough, dim: int, dtype: str, metadata: Mapping[str, Any]
    ) -> None:
        self._operation, self._pass_through, self._dim, self._dtype = operation, pass_through, dim, dtype
        self._metadata = {"bertline": json.dumps(metadata, sort_keys=True)}
        self._tables = parquet_library()
        self.schema: Any = None
        """Pass-through columns and their types; None until rows with results are known."""

    def prepare(self, results: ChunkResults) -> Any:
        """Reject rows whose pass-through columns do not have the types of the first rows; return the table."""
        indices, chunk = results.answered(), results.chunk
        if chunk.has_table:
            passed = self._pass_through.table(chunk, indices)
            if self.schema is None:
                self.schema = passed.schema
            passed = self._tables.with_schema(passed, self.schema, chunk.name)
        else:
            rows = self._pass_through.rows(chunk, indices)
            if self.schema is None and rows:
                self.schema = self._tables.infer(rows)
            passed = self._tables.rows_table(rows, self.schema or self._tables.infer([]))
            if passed is None:
                for index, row in zip(indices, rows, strict=True):
                    if reason := self._tables.mismatch(row, self.schema):
                        results.results[index] = Rejection(reason)
                assert len(results.answered()) < len(indices)
                return self.prepare(results)
        return self._with_results(passed, [results.results[index] for index in indices])

    def write(self, prepared: Any, stream: BinaryIO) -> None:
        """See Writer."""
        self._write_tables([prepared], stream)

    def join(self, parts: Sequence[File], stream: BinaryIO) -> None:
        """See Writer."""
        filled = (table for part in parts if (table := self._tables.read_table(part)).num_rows)
        self._write_tables(filled, stream)

    def is_empty(self, part: File) -> bool:
        """Return True if a part has no rows; it may lack columns then, which were not known yet."""
        return not self._tables.num_rows(part)

    def _write_tables(self, tables: Iterable[Any], stream: BinaryIO) -> None:
        """Write tables of the same columns; without any, a table without rows."""
        tables = iter(tables)
        first = next(tables, None)
        if first is None:
            first = self._with_results((self.schema or self._tables.infer([])).empty_table(), [])
        with self._tables.parquet_writer(stream, first.schema.with_metadata(self._metadata)) as writer:
            for table in chain([first], tables):
                writer.write_table(table.replace_schema_metadata(self._metadata))

    def _with_results(self, passed: Any, results: Sequence[Any]) -> Any:
        if self._operation.method == "embed":
            self._dim = vector_dim(self._dim, results)
        found = self._tables.results_table(self._operation, results, self._dim, self._dtype)
        return self._tables.side_by_side(passed, found)


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


def copy(source: BinaryIO, target: BinaryIO) -> int:
    """Copy the rest of a file.

    Returns:
        Number of lines.
    """
    num_lines = 0
    while data := source.read(1 << 20):
        target.write(data)
        num_lines += data.count(b"\n")
    return num_lines


_LINE_ENDS = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def json_line(row: Mapping[str, Any]) -> bytes:
    """Encode an object as one line of JSON.

    Lone surrogates become escapes, as do Unicode line ends, at which some readers split lines. NaN and infinities,
    which JSON does not have, become null.
    """
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=_from_parquet)
    except ValueError:
        plain = json.loads(json.dumps(row, default=_from_parquet), parse_constant=lambda name: None)
        text = json.dumps(plain, ensure_ascii=False)
    if not text.isascii():
        for char, escape in _LINE_ENDS.items():
            text = text.replace(char, escape)
    return text.encode("utf-8", "backslashreplace") + b"\n"


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
