"""Arrow tables: results and pass-through columns as tables, and table values as JSON."""

from __future__ import annotations

import base64
import datetime
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bertline.jobs.operations import VECTOR, Operation
from bertline.jobs.storage import FileError

_SCALARS = {str: pa.string(), int: pa.int64(), float: pa.float32(), bool: pa.bool_()}
_CONVERSION_ERRORS = (
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
    OverflowError,
    ValueError,
    RecursionError,
)
"""Errors of pyarrow for a value that a type cannot hold."""
_MAX_DEPTH = 30
"""Maximum nesting of inferred lists and structs; Parquet readers fail at about 100."""


def arrow_type(kind: Any) -> pa.DataType:
    """Return the Arrow type of `str`, `int`, `float` (float32), `bool`, [kind] or {name: kind}."""
    if isinstance(kind, list):
        return pa.list_(arrow_type(kind[0]))
    if isinstance(kind, Mapping):
        return pa.struct([(name, arrow_type(item)) for name, item in kind.items()])
    return _SCALARS[kind]


def results_table(operation: Operation, results: Sequence[Any], dim: int, dtype: str) -> pa.Table:
    """Convert the results of some rows to a table.

    Args:
        dim: length of the vectors, for `embed`.
        dtype: type of the vectors, for `embed`.
    """
    if operation.method == "embed":
        vectors = np.stack(results) if results else np.empty((0, dim), dtype=dtype)
        flat = pa.array(vectors.astype(dtype, copy=False).reshape(-1))
        return pa.table({VECTOR: pa.FixedSizeListArray.from_arrays(flat, dim)})
    schema = pa.schema([(name, arrow_type(kind)) for name, kind in operation.types.items()])
    return pa.Table.from_pylist([operation.result(result) for result in results], schema=schema)


def infer(rows: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """Infer columns and types of rows; string where nothing is known."""
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if _is_unicode(name)]
    return pa.schema([(name, _infer_type([row.get(name) for row in rows])) for name in names])


def _is_unicode(name: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in name)


def _infer_type(values: Sequence[Any]) -> pa.DataType:
    """Return the type of all values, or of the first value if types are mixed."""
    for candidates in ([values], ([value] for value in values if value is not None)):
        for candidate in candidates:
            try:
                return _storable(pa.array(candidate).type)
            except _CONVERSION_ERRORS:
                continue
    return pa.string()


def _storable(kind: pa.DataType, depth: int = 0) -> pa.DataType:
    """Replace parts of a type that are unknown (null), or that Parquet cannot store (empty structs), by string."""
    if depth > _MAX_DEPTH:
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_storable(kind.value_type, depth + 1))
    if pa.types.is_struct(kind) and kind.num_fields:
        return pa.struct([(field.name, _storable(field.type, depth + 1)) for field in kind])
    return pa.string() if pa.types.is_null(kind) or pa.types.is_struct(kind) else kind


def mismatch(row: Mapping[str, Any], schema: pa.Schema) -> str:
    """Return why a row does not fit the columns; empty if it does."""
    for name, value in row.items():
        if name not in schema.names:
            return f"`{name}` is not a column of the first rows; leave it out with --drop, or write JSONL"
        kind = schema.field(name).type
        try:
            pa.array([value], kind)
            fits = _is_lossless(kind, value)
        except _CONVERSION_ERRORS:
            fits = False
        if not fits:
            return (
                f"`{name}` is not of type {kind}, as in the first rows; correct it, leave it out with --drop, or write "
                "JSONL"
            )
    return ""


def _is_lossless(kind: pa.DataType, value: Any) -> bool:
    """Return True if pyarrow converts a value without loss. It drops unknown keys, makes a list of a string's letters,
    1.0 of true and 9 of 9.99."""
    if value is None:
        return True
    if pa.types.is_list(kind):
        return isinstance(value, list) and all(_is_lossless(kind.value_type, item) for item in value)
    if pa.types.is_struct(kind):
        known = {field.name: field.type for field in kind}
        return isinstance(value, Mapping) and all(
            name in known and _is_lossless(known[name], item) for name, item in value.items()
        )
    if pa.types.is_integer(kind):
        return not isinstance(value, float) or value.is_integer()
    return not (pa.types.is_floating(kind) and isinstance(value, bool))


def rows_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table | None:
    """Convert rows to a table; None if one of them does not fit."""
    kinds = {field.name: field.type for field in schema}
    if any(name not in kinds for row in rows for name in row):
        return None
    lossy = (pa.types.is_nested, pa.types.is_integer, pa.types.is_floating)
    to_check = [name for name, kind in kinds.items() if any(is_kind(kind) for is_kind in lossy)]
    if not all(_is_lossless(kinds[name], row.get(name)) for name in to_check for row in rows):
        return None
    try:
        return pa.Table.from_pylist(list(rows), schema=schema)
    except _CONVERSION_ERRORS:
        return None


def with_schema(table: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
    """Return the columns of a table in the order and types of a schema.

    Args:
        name: name of the file in messages.

    Raises:
        FileError: when the columns differ.
    """
    if set(table.column_names) != set(schema.names):
        found, expected = (", ".join(names) for names in (table.column_names, schema.names))
        raise FileError(
            f"{name} has other columns than the files before it ({found}; before: {expected}); "
            "select common columns with --keep"
        )
    try:
        return table.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise FileError(f"{name} has other types than the files before it: {error}") from error


def side_by_side(left: pa.Table, right: pa.Table) -> pa.Table:
    """Return one table with the columns of two. A table without columns does not know its number of rows."""
    schema = pa.schema([*left.schema, *right.schema])
    return pa.Table.from_arrays([*left.columns, *right.columns], schema=schema)


def parquet_writer(stream: BinaryIO, table: pa.Table) -> pq.ParquetWriter:
    """Open a writer for tables like this one. Vectors are stored without compression and statistics: these hardly save
    space, and take four times as long."""
    others = [path for path in _leaf_paths(table.schema) if not path.startswith(f"{VECTOR}.")]
    return pq.ParquetWriter(
        stream, table.schema, compression=dict.fromkeys(others, "zstd"), use_dictionary=others, write_statistics=others
    )


def _leaf_paths(schema: pa.Schema) -> list[str]:
    """Return the paths of the leaf columns that Parquet makes of a schema."""
    sample = io.BytesIO()
    pq.write_table(schema.empty_table(), sample)
    found = pq.ParquetFile(sample).schema
    return [found.column(index).path for index in range(len(found))]


# ---- values of tables in Python and JSON


def plain_json(value: Any) -> Any:
    """Return a string or number for a value that JSON has no type for, as `default` of `json.dumps`."""
    known: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
        (bytes, lambda data: base64.b64encode(data).decode("ascii")),
        ((datetime.date, datetime.time), lambda moment: moment.isoformat()),
        (datetime.timedelta, lambda span: span.total_seconds()),
    )
    return next((write(value) for kind, write in known if isinstance(value, kind)), str(value))


def without_views(table: pa.Table) -> pa.Table:
    """Convert string views to strings, which all functions of pyarrow accept."""
    return _convert(table, lambda kind: _OF_VIEWS.get(kind, kind))


def to_rows(table: pa.Table, name: str) -> list[dict[str, Any]]:
    """Convert a table to Python objects. Times that Python cannot hold (nanoseconds, far years) become strings.

    Args:
        name: name of the file in messages.

    Raises:
        FileError: when a column cannot be converted.
    """
    table = _convert(table, _without_nanoseconds, name)
    try:
        return table.to_pylist()
    except (ValueError, OverflowError):
        return _convert(table, lambda kind: pa.string() if pa.types.is_temporal(kind) else kind, name).to_pylist()


def to_inputs(table: pa.Table, name: str) -> list[dict[str, Any]]:
    """Convert a table like `to_rows`, but times to numbers, so that they are not taken for texts."""
    return to_rows(_convert(without_views(table), _time_as_number), name)


def is_valid(table: pa.Table) -> bool:
    """Return True if all values match their types. Strings may hold bytes that are not UTF-8."""
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def escaped(table: pa.Table, name: str) -> dict[str, Any]:
    """Convert a table of one row, with escapes for bytes that are not UTF-8; strings in lists become bytes."""
    (row,) = to_inputs(_convert(without_views(table), lambda kind: _BYTES.get(kind, kind)), name)
    return {
        name: value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
        for name, value in row.items()
    }


_BYTES: Mapping[pa.DataType, pa.DataType] = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
_OF_VIEWS: Mapping[pa.DataType, pa.DataType] = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def _without_nanoseconds(kind: pa.DataType) -> pa.DataType:
    """Nanoseconds become strings: pyarrow would return pandas types where pandas is installed."""
    return pa.string() if pa.types.is_temporal(kind) and getattr(kind, "unit", "") == "ns" else kind


def _time_as_number(kind: pa.DataType) -> pa.DataType:
    if not pa.types.is_temporal(kind) or pa.types.is_interval(kind):
        return kind
    return pa.int64() if kind.bit_width == 64 else pa.int32()


def _convert(table: pa.Table, change: Callable[[pa.DataType], pa.DataType], name: str = "") -> pa.Table:
    """Cast the columns whose type, or a type within it, `change` replaces."""
    for index, field in enumerate(table.schema):
        kind = _changed(field.type, change)
        if kind == field.type:
            continue
        try:
            table = table.set_column(index, field.with_type(kind), _cast(table.column(index), kind))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise FileError(
                f"cannot read column `{field.name}` of {name} ({field.type}); leave it out with --drop"
            ) from error
    return table


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_duration(column.type):  # pyarrow cannot cast durations to strings directly
        column = column.cast(pa.int64())
    return column.cast(kind)


def _changed(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Apply `change` to a type and to all types nested in it."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_changed(field.type, change)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_changed(kind.key_type, change), _changed(kind.item_type, change))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_changed(kind.value_type, change)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_changed(kind.value_type, change)))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_changed(kind.value_type, change)), kind.list_size)
    if pa.types.is_dictionary(kind) and change(kind.value_type) != kind.value_type:
        return change(kind.value_type)
    return change(kind)
