"""Results and kept columns as Arrow tables, which all parts of a job hold in the same columns and types."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bertline.jobs.operations import VECTOR, Operation
from bertline.jobs.storage import FileError

_SCALARS = {str: pa.string(), int: pa.int64(), float: pa.float32(), bool: pa.bool_()}


def typed(kind: Any) -> pa.DataType:
    """The Arrow type of `str`, `int`, `float` (float32), `bool`, [kind] or {name: kind}."""
    if isinstance(kind, list):
        return pa.list_(typed(kind[0]))
    if isinstance(kind, Mapping):
        return pa.struct([(name, typed(item)) for name, item in kind.items()])
    return _SCALARS[kind]


def results_table(operation: Operation, results: Sequence[Any], dim: int, dtype: str) -> pa.Table:
    """The results of some rows.

    Args:
        dim: length of the vectors, of `embed`.
        dtype: `float32` or `float16`, of the vectors.
    """
    if operation.method == "embed":
        vectors = np.stack(results) if results else np.empty((0, dim), dtype=np.float32)
        flat = pa.array(vectors.astype(dtype, copy=False).reshape(-1))
        return pa.table({VECTOR: pa.FixedSizeListArray.from_arrays(flat, dim)})
    schema = pa.schema([(name, typed(kind)) for name, kind in operation.types.items()])
    return pa.Table.from_pylist([operation.result(result) for result in results], schema=schema)


def infer(rows: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """Columns and types of rows; strings where nothing is known."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    fields = [(name, _type([row.get(name) for row in rows])) for name in names]
    return pa.schema(fields)


def _type(values: Sequence[Any]) -> pa.DataType:
    try:
        found = pa.array(values).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # of several types: what most rows have is what the first have
        found = pa.array([next(value for value in values if value is not None)]).type
    return pa.string() if pa.types.is_null(found) else found


def misfit(row: Mapping[str, Any], schema: pa.Schema) -> str:
    """Why a row does not fit into the columns; empty if it does."""
    for name, value in row.items():
        if name not in schema.names:
            return f"`{name}` is a column that the first rows have not; leave it out with --keep, or write JSONL"
        try:
            pa.array([value], schema.field(name).type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError):
            return f"`{name}` is not a {schema.field(name).type}, as in the first rows; mend it, or write JSONL"
    return ""


def rows_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table | None:
    """Rows as a table; None where one of them is a misfit."""
    if any(name not in schema.names for row in rows for name in row):
        return None
    try:
        return pa.Table.from_pylist(list(rows), schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError):
        return None


def fitted(table: pa.Table, schema: pa.Schema, place: str) -> pa.Table:
    """The columns of a table in the order and types of others.

    Raises:
        FileError: when they are not the same columns.
    """
    if set(table.column_names) != set(schema.names):
        there, wanted = (", ".join(names) for names in (table.column_names, schema.names))
        raise FileError(
            f"{place} has other columns than the files before it ({there}; before: {wanted}); "
            "choose some that all have with --keep"
        )
    try:
        return table.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise FileError(f"{place} has other types than the files before it: {error}") from error


def beside(kept: pa.Table, found: pa.Table) -> pa.Table:
    """One table of the columns of two; the first may have no column, and then knows no rows."""
    schema = pa.schema([*kept.schema, *found.schema])
    return pa.Table.from_arrays([*kept.columns, *found.columns], schema=schema)


def writer(stream: BinaryIO, table: pa.Table) -> pq.ParquetWriter:
    """A writer of tables like this one. Vectors are neither compressed nor counted: they hardly become smaller, and it
    takes four times as long."""
    others = [path for path in _paths(table.schema) if not path.startswith(f"{VECTOR}.")]
    return pq.ParquetWriter(
        stream, table.schema, compression=dict.fromkeys(others, "zstd"), use_dictionary=others, write_statistics=others
    )


def _paths(schema: pa.Schema) -> list[str]:
    """The columns of numbers, strings and so on that Parquet makes of a schema."""
    sample = io.BytesIO()
    pq.write_table(schema.empty_table(), sample)
    found = pq.ParquetFile(sample).schema
    return [found.column(index).path for index in range(len(found))]
