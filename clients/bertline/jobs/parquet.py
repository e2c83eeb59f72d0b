"""Parquet files: reader of rows, and writer of results."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial, reduce
from operator import truediv
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from bertline.jobs.formats import NOT_UTF8
from bertline.jobs.rows import BATCH_ROWS, Chunk, Rejection, Row, Rows
from bertline.jobs.storage import File, FileError, open_read
from bertline.jobs.tables import (
    CONVERSION_ERRORS,
    MIXED,
    TEXT,
    arrow_type,
    becomes_text,
    converted,
    merged,
    rows_table,
    side_by_side,
    storable,
    to_rows,
)
from bertline.jobs.write import REASON, PassThrough, Writer, print_error, stacked
from bertline.operations.base import Operation
from bertline.operations.embed import VECTOR

_READ_ERRORS = (OSError, ValueError, NotImplementedError, KeyError)
"""Base classes of pyarrow's errors."""
_CARRIED = (b"pandas", b"geo", b"huggingface")
"""Metadata of a file that other programs need and that stay true with more columns."""
_NUM_READERS = 8
"""Number of footers that are read at the same time."""


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
    keys: Mapping[str, Any],
) -> Iterator[Rows]:
    """Read rows. They hold the wanted columns that exist; the table holds all columns.

    Args:
        check: called with the names of the columns.
        wanted: columns that the operation reads.
        select: returns the columns to copy into the output.
        keys: more columns with one value, unless the file has them.

    Raises:
        FileError: when the file is damaged.
    """
    with parquet_errors(name):
        file = pq.ParquetFile(stream)
    check(file.schema_arrow.names)
    columns = list(dict.fromkeys([*file.schema_arrow.names, *keys]))
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
        for name in columns[batch.num_columns :]:
            batch = batch.append_column(name, pa.array([keys[name]] * len(batch)))
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

    A part has the columns and types of its own rows; the output those of all parts.

    Args:
        operation: operation of the job.
        types: types of its results, see `tables.arrow_type`.
        pass_through: columns before the results.
        dim: length of the vectors, for `embed`.
        dtype: type of the vectors, for `embed`.
        metadata: metadata of the files.
        is_typed: True if all inputs have types, which then stay as they are.
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
        *,
        is_typed: bool = False,
    ) -> None:
        self._operation, self._pass_through, self._dim, self._dtype = operation, pass_through, dim, dtype
        self._results = pa.schema([(name, arrow_type(kind)) for name, kind in types.items()])
        self._metadata = {b"bertline": json.dumps(metadata, sort_keys=True).encode()}
        self._is_typed = is_typed
        self._schema: pa.Schema | None = None
        """Columns of the output."""

    def settle(self, parts: Sequence[File]) -> Sequence[File]:
        """See Writer. Prints what the input has and the output cannot have."""
        with ThreadPoolExecutor(_NUM_READERS) as threads:
            schemas = list(threads.map(_schema_of, parts))
        passed = [[field for field in schema if field.name not in self._results.names] for schema in schemas]
        fields = {field.name: field for field in reduce(merged, passed)} if passed else {}
        if not self._is_typed:
            fields = {name: storable(field) for name, field in fields.items()}
        mixed = {name for name, field in fields.items() if (field.metadata or {}).items() & MIXED.items()}
        for part, columns in zip(parts, passed, strict=True):
            changed = [field for field in columns if field.type != fields[field.name].type]
            mixed |= {field.name for field in changed if becomes_text(field.type, fields[field.name].type)}
            for name in _unfit(part, [fields[field.name] for field in changed]):
                fields[name] = fields[name].with_type(TEXT)
                mixed.add(name)
        for name in mixed:
            fields[name] = fields[name].with_metadata(MIXED)
        metadata = self._metadata | self._carried(schemas)
        results = [schemas[0].field(name) for name in self._results.names] if schemas else self._result_table([]).schema
        self._schema = pa.schema([*fields.values(), *results], metadata)
        if mixed:
            names = ", ".join(f"`{name}`" for name in fields if name in mixed)
            print_error(f"no single type holds all values of {names}: strings stay, other values are JSON text")
        return [part for part, schema in zip(parts, schemas, strict=True) if not schema.equals(self._schema, True)]

    def _carried(self, schemas: Sequence[pa.Schema]) -> dict[bytes, bytes]:
        """Return the metadata for other programs that all parts have."""
        carried = {}
        for key in _CARRIED:
            values = [(schema.metadata or {}).get(key, b"") for schema in schemas]
            if len({*values}) == 1 and values[0]:
                carried[key] = values[0]
            elif any(values):
                print_error(f"the metadata `{key.decode()}` differ between the inputs; the output has none")
        return carried

    def write(self, chunk: Chunk, stream: BinaryIO) -> None:
        """See Writer."""
        indices = self._pass_through.indices(chunk)
        if chunk.tables:
            passed = self._pass_through.table(chunk, indices)
        else:
            passed = rows_table(self._pass_through.rows(chunk, indices))
        found = passed.schema.metadata or {}
        metadata = self._metadata | {key: found[key] for key in _CARRIED if key in found}
        if not _geo_columns(metadata) <= {*passed.column_names}:
            del metadata[b"geo"]
        table = side_by_side(passed, self._result_table([chunk.results[index] for index in indices]))
        self._write_tables(table.schema.with_metadata(metadata), [table], stream)

    def join(self, parts: Sequence[File], stream: BinaryIO) -> None:
        """See Writer."""
        schema = self._schema
        assert schema

        def tables() -> Iterator[pa.Table]:
            for part in parts:
                with _opened(part) as file:
                    table = file.read()
                if table.num_rows:
                    missing = pa.nulls(table.num_rows)
                    columns = [table[name] if name in table.column_names else missing for name in schema.names]
                    kinds = zip(columns, schema.types, strict=True)
                    columns = [converted(column, kind, f"`{part.url}`") for column, kind in kinds]
                    yield pa.Table.from_arrays(columns, schema=schema)

        self._write_tables(schema, tables(), stream)

    def _result_table(self, results: Sequence[Any]) -> pa.Table:
        if self._operation.method != "embed":
            rows = list(self._pass_through.results(self._operation, results))
            return pa.Table.from_pylist(rows, schema=self._results)
        reasons = [result.reason if isinstance(result, Rejection) else None for result in results]
        vectors, is_missing = stacked(results, self._dim, self._dtype), pa.array(reasons, TEXT).is_valid()
        lists = pa.FixedSizeListArray.from_arrays(
            pa.array(vectors.reshape(-1)), vectors.shape[1], mask=is_missing if any(reasons) else None
        )
        columns = {VECTOR: lists, REASON: pa.array(reasons, TEXT)}
        return pa.table({name: columns[name] for name in self._results.names})

    def _write_tables(self, schema: pa.Schema, tables: Iterable[pa.Table], stream: BinaryIO) -> None:
        """Write tables with the columns of a schema.

        Vectors are stored without compression and statistics: these hardly save space, and take four times as long.
        """
        sample = io.BytesIO()
        pq.write_table(schema.empty_table(), sample)
        leaves = pq.ParquetFile(sample).schema
        paths = [leaves.column(index).path for index in range(len(leaves))]
        others = [path for path in paths if not path.startswith(f"{VECTOR}.")]
        zstd = dict.fromkeys(others, "zstd")
        with pq.ParquetWriter(
            stream, schema, compression=zstd, use_dictionary=others, write_statistics=others
        ) as writer:
            for table in tables:
                writer.write_table(table)


def _geo_columns(metadata: Mapping[bytes, bytes]) -> set[str]:
    """Return the columns that the metadata `geo` name, all of which must exist."""
    with suppress(ValueError, AttributeError):
        return set(json.loads(metadata.get(b"geo", b"{}")).get("columns", ()))
    return set()


def _schema_of(part: File) -> pa.Schema:
    with _opened(part) as file:
        return file.schema_arrow


def _unfit(part: File, fields: Sequence[pa.Field]) -> Iterator[str]:
    """Yield the names of the columns of a part that these types cannot hold."""
    if not fields:
        return
    with _opened(part) as file:
        table = file.read([field.name for field in fields])
    for field in fields:
        try:
            converted(table[field.name], field.type, f"`{part.url}`")
        except CONVERSION_ERRORS:
            yield field.name


@contextmanager
def _opened(part: File) -> Iterator[pq.ParquetFile]:
    with open_read(part) as (stream, _), parquet_errors(f"`{part.url}`"):
        yield pq.ParquetFile(stream)
