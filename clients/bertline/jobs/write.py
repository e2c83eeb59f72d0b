"""Writers of results: one part file a chunk, and all parts joined to one file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from bertline.jobs.rows import Chunk, Rejection, Selection, plain
from bertline.jobs.storage import File, FileError, open_read
from bertline.operations.base import Operation

ROW_NUMBER, FILE = "row_number", "file"
"""Output columns that identify the input row: its number in its file, from 1, and the file if there are several."""
REASON = "reason"
"""Output column with the reason why a row was rejected, if the output keeps such rows."""


@dataclass(frozen=True)
class PassThrough:
    """Pass-through columns of an output."""

    selection: Selection
    result_names: Collection[str]
    """Columns of the results, perhaps REASON. An input column of the same name is renamed to `input_...`."""
    position_names: Sequence[str] = ()
    """ROW_NUMBER and FILE, if they are written. An input column of the same name is renamed, too."""

    def names(self, columns: Iterable[str]) -> dict[str, str]:
        """Map selected input columns to their names in the output."""
        selected, taken = self.selection.of(columns), {*self.result_names, *self.position_names}
        names = {}
        for name in selected:
            free = name
            while name in taken and (free in taken or free in selected):
                free = f"input_{free}"
            names[name] = free
        return names

    def indices(self, chunk: Chunk) -> list[int]:
        """Return the indices of the rows to write: those that have results, and with REASON all."""
        return list(range(len(chunk.rows))) if REASON in self.result_names else chunk.answered()

    def results(self, operation: Operation, results: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """Convert results to JSON objects; those of rejected rows have nulls and the reason."""
        reason = {REASON: None} if REASON in self.result_names else {}
        for result in results:
            if isinstance(result, Rejection):
                yield dict.fromkeys(self.result_names) | {REASON: result.reason}
            else:
                yield operation.result(result) | reason

    def rows(self, chunk: Chunk, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return these columns of some rows of a chunk, as JSON objects. A row that could not be read has none."""
        if chunk.tables:
            from bertline.jobs import tables

            table = self.table(chunk, indices)  # a table without columns has no rows
            return tables.to_rows(table, chunk.name) if table.column_names else [{} for _ in indices]
        rows, known = [], dict[tuple[str, ...], dict[str, str]]()
        for index in indices:
            fields = {} if chunk.rows[index].reason else chunk.rows[index].fields
            columns = tuple(fields)
            if columns not in known:
                known[columns] = self.names(columns)
            passed = {output_name: fields[name] for name, output_name in known[columns].items()}
            rows.append(self._position(chunk, index) | passed)
        return rows

    def _position(self, chunk: Chunk, index: int) -> dict[str, Any]:
        position = {ROW_NUMBER: chunk.row_number(index), FILE: chunk.path}
        return {name: position[name] for name in self.position_names}

    def table(self, chunk: Chunk, indices: Sequence[int]) -> Any:
        """Return these columns of some rows of a Parquet chunk, as a pyarrow.Table with types and metadata of the file.

        In a row that could not be read they are null.
        """
        import pyarrow

        from bertline.jobs import tables

        table = pyarrow.Table.from_batches(chunk.tables)
        names, metadata = self.names(table.column_names), table.schema.metadata
        table = tables.without_views(table.select(list(names)).rename_columns(list(names.values())))
        types = {ROW_NUMBER: pyarrow.int64(), FILE: pyarrow.string()}
        positions = pyarrow.Table.from_pylist(
            [self._position(chunk, index) for index in indices],
            schema=pyarrow.schema([(name, types[name]) for name in self.position_names]),
        )
        readable = pyarrow.array([None if chunk.rows[index].reason else index for index in indices], pyarrow.int64())
        fields = [field.with_nullable(True) if readable.null_count else field for field in table.schema]
        schema = pyarrow.schema(fields, metadata)
        taken = pyarrow.Table.from_arrays(table.take(readable).columns, schema=schema)
        return tables.side_by_side(positions, taken)


class Writer:
    """Writer of one output format."""

    suffix: str
    """Suffix of its files."""
    description: Mapping[str, Any] | None = None
    """Metadata for a file next to the output, in a format that has no place for them: model, space, options."""

    def settle(self, parts: Sequence[File]) -> Sequence[File]:
        """Decide on the columns of the output when all parts are there; return the parts that have others."""
        return ()

    def write(self, chunk: Chunk, stream: BinaryIO) -> None:
        """Write the rows of a chunk."""
        raise NotImplementedError

    def join(self, parts: Sequence[File], stream: BinaryIO) -> None:
        """Write the rows of some parts as one file, with the columns of `settle`."""
        raise NotImplementedError


class JsonlWriter(Writer):
    """One JSON object a row."""

    suffix = ".jsonl"

    def __init__(self, operation: Operation, pass_through: PassThrough) -> None:
        self._operation, self._pass_through = operation, pass_through

    def write(self, chunk: Chunk, stream: BinaryIO) -> None:
        """See Writer."""
        indices = self._pass_through.indices(chunk)
        results = self._pass_through.results(self._operation, (chunk.results[index] for index in indices))
        for row, result in zip(self._pass_through.rows(chunk, indices), results, strict=True):
            stream.write(json_line({**row, **result}))

    def join(self, parts: Sequence[File], stream: BinaryIO) -> None:
        """See Writer."""
        for part in parts:
            with open_read(part) as (read, _):
                copy(read, stream)


class NpyWriter(Writer):
    """One array of all vectors [rows, dim]; NaN in rows that were rejected, and 0 if the numbers are whole."""

    suffix = ".npy"

    def __init__(self, dim: int, dtype: str, description: Mapping[str, Any]) -> None:
        self._dim, self._dtype, self.description = dim, dtype, description

    def write(self, chunk: Chunk, stream: BinaryIO) -> None:
        """See Writer."""
        array = stacked(chunk.results, self._dim, self._dtype)
        np.lib.format.write_array(stream, array)

    def join(self, parts: Sequence[File], stream: BinaryIO) -> None:
        """See Writer."""
        shapes = []
        for part in parts:
            with open_read(part) as (read, _):
                shapes.append(_npy_shape(read))
        dims = {dim for _, dim in shapes} or {self._dim}
        if len(dims) > 1:
            raise FileError("vectors have different lengths: several models answered; name one with --model")
        shape = (sum(num_rows for num_rows, _ in shapes), *dims)
        header = {"descr": np.dtype(self._dtype).str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)  # type: ignore[arg-type]
        for part in parts:
            with open_read(part) as (read, _):
                _npy_shape(read)
                copy(read, stream)


def stacked(results: Sequence[Any], dim: int, dtype: str) -> np.ndarray:
    """Return vectors as one array [rows, dim]; NaN for rejected rows, and 0 if the numbers are whole."""
    is_answered = np.array([not isinstance(result, Rejection) for result in results], bool)
    vectors = [result for result in results if not isinstance(result, Rejection)]
    missing = np.nan if np.dtype(dtype).kind == "f" else 0
    array = np.full((len(results), len(vectors[0]) if vectors else dim), missing, dtype=dtype)
    if vectors:
        array[is_answered] = np.stack(vectors)
    return array


def _npy_shape(stream: BinaryIO) -> tuple[int, int]:
    np.lib.format.read_magic(stream)
    (num_rows, dim), _, _ = np.lib.format.read_array_header_1_0(stream)
    return num_rows, dim


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
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=plain)
    except ValueError:
        finite = json.loads(json.dumps(row, default=plain), parse_constant=lambda name: None)
        text = json.dumps(finite, ensure_ascii=False)
    if not text.isascii():
        for char, escape in _LINE_ENDS.items():
            text = text.replace(char, escape)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def print_error(message: str) -> None:
    """Print a line on standard error."""
    print(f"bertline: {message}", file=sys.stderr)


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
