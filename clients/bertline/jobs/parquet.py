"""Parquet files: reader of rows, and writer of results."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, takewhile
from operator import truediv
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bertline.jobs.formats import NOT_UTF8
from bertline.jobs.rows import BATCH_ROWS, Chunk, Rejection, Row, Rows
from bertline.jobs.storage import File, FileError, open_read
from bertline.jobs.tables import (
    arrow_type,
    infer,
    mismatch,
    rows_table,
    side_by_side,
    to_rows,
    with_schema,
)
from bertline.jobs.write import PassThrough, Writer
from bertline.operations.base import Operation
from bertline.operations.embed import VECTOR

_READ_ERRORS = (OSError, ValueError, NotImplementedError, KeyError)
"""Base classes of pyarrow's errors."""


@contextmanager
def parquet_errors(name: str) -> Iterator[None]:
    """Turn pyarrow's errors into a FileError that names the file."""
    try:
        yield
    except _READ_ERRORS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise FileError(f"cannot read {name}: {reason}") from error


def read_parquet(
    stream: BinaryIO,
    name: str,
    check: Callable[[Sequence[str]], None],
    wanted: Sequence[str],
    select: Callable[[Sequence[str]], list[str]],
) -> Iterator[Rows]:
    """Read rows. They hold the wanted columns that exist; the table holds all columns.

    Args:
        check: called with the names of the columns.
        wanted: columns that the operation reads.
        select: returns the columns to copy into the output.

    Raises:
        FileError: when the file is damaged.
    """
    with parquet_errors(name):
        file = pq.ParquetFile(stream)
    columns = file.schema_arrow.names
    check(columns)
    num_done, num_rows, footer_bytes = 0, max(1, file.metadata.num_rows), file.metadata.serialized_size
    stream.seek(-8 - footer_bytes, io.SEEK_END)
    footer = hashlib.blake2b(stream.read(footer_bytes)).digest()  # changes with any column
    inputs = [column for column in wanted if column in columns]
    used = list(dict.fromkeys([*inputs, *select(columns)]))
    batches = file.iter_batches(BATCH_ROWS)
    while True:
        with parquet_errors(name):
            batch = next(batches, None)
        if batch is None:
            return
        rows = _parquet_rows(pa.Table.from_batches([batch]).select(used), inputs, name, num_done + 1)
        num_done += len(rows)
        content = footer + repr([row.fields for row in rows]).encode("utf-8", "surrogatepass")
        yield Rows(rows, content, batch.nbytes, partial(truediv, num_done, num_rows), batch)


def _parquet_rows(table: pa.Table, inputs: Sequence[str], name: str, first: int) -> list[Row]:
    """Convert a table to rows with the columns `inputs`; rows with strings that are not UTF-8 have none."""
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        if len(table) > 1:
            rows = (_parquet_rows(table.slice(index, 1), inputs, name, first + index) for index in range(len(table)))
            return [row for (row,) in rows]
        try:
            to_rows(table, name)
        except UnicodeDecodeError:
            return [Row(f"row {first}", {}, NOT_UTF8)]
    return [Row(f"row {number}", row) for number, row in enumerate(to_rows(table.select(inputs), name), start=first)]


class ParquetWriter(Writer):
    """Table with the pass-through columns and the results; vectors are lists of a fixed size.

    Args:
        operation: operation of the job.
        types: types of its results, see `tables.arrow_type`.
        pass_through: columns before the results.
        dim: length of the vectors, for `embed`.
        dtype: type of the vectors, for `embed`.
        metadata: metadata of the files.
    """

    suffix = ".parquet"

    def __init__(
        self,
        operation: Operation,
        types: Mapping[str, Any],
        pass_through: PassThrough,
        dim: int,
        dtype: str,
        metadata: Mapping[str, Any],
    ) -> None:
        self._operation, self._pass_through, self._dim, self._dtype = operation, pass_through, dim, dtype
        self._results = pa.schema([(name, arrow_type(kind)) for name, kind in types.items()])
        self._metadata = {"bertline": json.dumps(metadata, sort_keys=True)}
        self._schema = pa.schema([])
        """Pass-through columns and their types."""
        self.has_columns = False

    def resume(self, parts: Iterable[File]) -> None:
        """See Writer."""
        for part in parts:
            with _opened(part) as file:
                if file.metadata.num_rows:
                    self._set_columns(file.schema_arrow.empty_table().drop_columns(self._results.names).schema)
                    return

    def incomplete(self, parts: Iterable[File]) -> Iterable[File]:
        """See Writer."""

        def is_empty(part: File) -> bool:
            with _opened(part) as file:
                return not file.metadata.num_rows

        return takewhile(is_empty, parts)

    def write(self, chunk: Chunk, stream: BinaryIO) -> None:
        """See Writer."""
        passed = self._passed(chunk)
        self._write_tables([self._with_results(passed, [chunk.results[index] for index in chunk.answered()])], stream)

    def join(self, parts: Sequence[File], stream: BinaryIO) -> None:
        """See Writer."""

        def tables() -> Iterator[pa.Table]:
            for part in parts:
                with _opened(part) as file:
                    if file.metadata.num_rows:
                        yield file.read()

        self._write_tables(tables(), stream)

    def _set_columns(self, schema: pa.Schema) -> None:
        self._schema, self.has_columns = schema, True

    def _passed(self, chunk: Chunk) -> pa.Table:
        """Return the pass-through columns of rows with results. Rows unlike the first rows are rejected."""
        indices = chunk.answered()
        if chunk.tables:
            passed = self._pass_through.table(chunk, indices)
            if not self.has_columns:
                self._set_columns(passed.schema)
            return with_schema(passed, self._schema, chunk.name)
        rows = self._pass_through.rows(chunk, indices)
        if rows and not self.has_columns:
            self._set_columns(infer(rows))
        if (table := rows_table(rows, self._schema)) is not None:
            return table
        for index, row in zip(indices, rows, strict=True):
            if reason := mismatch(row, self._schema):
                chunk.results[index] = Rejection(reason)
        assert len(chunk.answered()) < len(indices)
        return self._passed(chunk)

    def _with_results(self, passed: pa.Table, results: Sequence[Any]) -> pa.Table:
        if self._operation.method != "embed":
            rows = list(map(self._operation.result, results))
            return side_by_side(passed, pa.Table.from_pylist(rows, schema=self._results))
        vectors = np.stack(results) if results else np.empty((0, self._dim))
        numbers = pa.array(vectors.astype(self._dtype, copy=False).reshape(-1))
        lists = pa.FixedSizeListArray.from_arrays(numbers, vectors.shape[1])
        return side_by_side(passed, pa.table({VECTOR: lists}))

    def _write_tables(self, tables: Iterable[pa.Table], stream: BinaryIO) -> None:
        """Write tables of the same columns; without any, a table without rows.

        Vectors are stored without compression and statistics: these hardly save space, and take four times as long.
        """
        tables = iter(tables)
        first = next(tables, None)
        if first is None:
            first = self._with_results(self._schema.empty_table(), [])
        sample = io.BytesIO()
        pq.write_table(first.schema.empty_table(), sample)
        leaves = pq.ParquetFile(sample).schema
        paths = [leaves.column(index).path for index in range(len(leaves))]
        others = [path for path in paths if not path.startswith(f"{VECTOR}.")]
        schema, zstd = first.schema.with_metadata(self._metadata), dict.fromkeys(others, "zstd")
        with pq.ParquetWriter(
            stream, schema, compression=zstd, use_dictionary=others, write_statistics=others
        ) as writer:
            for table in chain([first], tables):
                writer.write_table(table.replace_schema_metadata(self._metadata))


@contextmanager
def _opened(part: File) -> Iterator[pq.ParquetFile]:
    with open_read(part) as (stream, _), parquet_errors(f"`{part.url}`"):
        yield pq.ParquetFile(stream)
