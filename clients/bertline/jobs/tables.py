"""Arrow tables: convert results and pass-through columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import pyarrow as pa

from bertline.jobs.storage import FileError

_SCALARS = {str: pa.string(), int: pa.int64(), float: pa.float32(), bool: pa.bool_()}
_CONVERSION_ERRORS = (ValueError, TypeError, NotImplementedError, OverflowError, RecursionError)
"""Errors of pyarrow for a value that a type cannot hold."""

# ---- results and pass-through columns


def arrow_type(kind: Any) -> pa.DataType:
    """Return the Arrow type of `str`, `int`, `float` (float32), `bool`, [kind] or {name: kind}."""
    if isinstance(kind, list):
        return pa.list_(arrow_type(kind[0]))
    if isinstance(kind, Mapping):
        return pa.struct([(name, arrow_type(item)) for name, item in kind.items()])
    return _SCALARS[kind]


def infer(rows: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """Infer columns and types of rows; string where nothing is known."""
    all_names = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in all_names if not any("\ud800" <= char <= "\udfff" for char in name)]
    return pa.schema([(name, _infer_type([row.get(name) for row in rows])) for name in names])


def _infer_type(values: Sequence[Any]) -> pa.DataType:
    """Return the type of all values, or of the first value if types are mixed."""
    for candidate in chain([values], ([value] for value in values if value is not None)):
        with suppress(*_CONVERSION_ERRORS):
            return _storable(pa.array(candidate).type)
    return pa.string()


def _storable(kind: pa.DataType) -> pa.DataType:
    """Replace parts of a type that are unknown (null), or that Parquet cannot store (empty structs), by string."""
    if pa.types.is_list(kind):
        return pa.list_(_storable(kind.value_type))
    if pa.types.is_struct(kind) and kind.num_fields:
        return pa.struct([(field.name, _storable(field.type)) for field in kind])
    return pa.string() if pa.types.is_null(kind) or pa.types.is_struct(kind) else kind


def mismatch(row: Mapping[str, Any], schema: pa.Schema) -> str:
    """Return why a row does not fit the columns; empty if it does."""
    for name, value in row.items():
        if name not in schema.names:
            return f"`{name}` is not a column of the first rows; leave it out with --drop, or write JSONL"
        field = schema.field(name)
        if rows_table([{name: value}], pa.schema([field])) is None:
            return (
                f"`{name}` is not of type {field.type}, as in the first rows; correct it, leave it out with --drop, or "
                "write JSONL"
            )
    return ""


def _is_lossless(kind: pa.DataType, value: Any) -> bool:
    """Return True if pyarrow converts a value without loss. It drops unknown keys, makes a list of a string's letters,
    1.0 of true and 9 of 9.99."""
    if value is None:
        return True
    if isinstance(value, str):
        return not pa.types.is_list(kind)
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
    values = ((name, value) for row in rows for name, value in row.items())
    if not all(name in kinds and _is_lossless(kinds[name], value) for name, value in values):
        return None
    try:
        return pa.Table.from_pylist(list(rows), schema=schema)
    except _CONVERSION_ERRORS:
        return None


def with_schema(table: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
    """Return the columns of a table in the order and types of a schema.

    Raises:
        FileError: when the columns differ.
    """
    differing = sorted(set(table.column_names) ^ set(schema.names))
    reason = f"only one of them has {', '.join(differing)}"
    try:
        if not differing:
            return table.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error)
    raise FileError(f"schema of {name} differs from earlier files: {reason}; select common columns with --keep")


def side_by_side(left: pa.Table, right: pa.Table) -> pa.Table:
    """Return one table with the columns of two. A table without columns does not know its number of rows."""
    schema = pa.schema([*left.schema, *right.schema])
    return pa.Table.from_arrays([*left.columns, *right.columns], schema=schema)


# ---- values of tables in Python


def without_views(table: pa.Table) -> pa.Table:
    """Convert string views to strings, which all functions of pyarrow accept."""
    strings = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return _convert(table, lambda kind: strings.get(kind, kind), "")


def to_rows(table: pa.Table, name: str) -> list[dict[str, Any]]:
    """Convert a table to Python objects. Times that Python cannot hold (nanoseconds, far years) become strings.

    Raises:
        FileError: when a column cannot be converted.
    """
    table = _convert(without_views(table), _without_nanoseconds, name)
    try:
        return table.to_pylist()
    except (ValueError, OverflowError):
        return _convert(table, lambda kind: pa.string() if pa.types.is_temporal(kind) else kind, name).to_pylist()


def _without_nanoseconds(kind: pa.DataType) -> pa.DataType:
    """Nanoseconds become strings: pyarrow would return pandas types where pandas is installed."""
    return pa.string() if pa.types.is_temporal(kind) and getattr(kind, "unit", "") == "ns" else kind


def _convert(table: pa.Table, change: Callable[[pa.DataType], pa.DataType], name: str) -> pa.Table:
    """Cast the columns whose type, or a type within it, `change` replaces."""
    for index, field in enumerate(table.schema):
        kind = _changed(field.type, change)
        if kind == field.type:
            continue
        try:
            column = table.column(index)
            if pa.types.is_duration(column.type):  # pyarrow cannot cast durations to strings directly
                column = column.cast(pa.int64())
            table = table.set_column(index, field.with_type(kind), column.cast(kind))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise FileError(
                f"cannot read column `{field.name}` of {name} ({field.type}); leave it out with --drop"
            ) from error
    return table


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
