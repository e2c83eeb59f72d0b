"""Arrow tables: convert results and pass-through columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa

from bertline.jobs.rows import plain
from bertline.jobs.storage import FileError

_SCALARS = {str: pa.string(), int: pa.int64(), float: pa.float32(), bool: pa.bool_()}
CONVERSION_ERRORS = (ValueError, TypeError, NotImplementedError, OverflowError)
"""Errors of pyarrow for a value that a type cannot hold."""
TEXT = pa.string()
MIXED = {b"bertline": b"text"}
"""Metadata of a column with values that no single type can hold."""
_NO_KEYS = "{}"
_OBJECT = pa.struct([(_NO_KEYS, pa.null())])
"""Type of objects without keys, as Parquet cannot store one without fields."""
_MAX_DEPTH, _MAX_FIELDS = 32, 256
"""Limits of nested types: deeper lists, and objects with more keys (ids, perhaps), become text."""

# ---- results and pass-through columns


def arrow_type(kind: Any) -> pa.DataType:
    """Return the Arrow type of `str`, `int`, `float` (float32), `bool`, [kind] or {name: kind}."""
    if isinstance(kind, list):
        return pa.list_(arrow_type(kind[0]))
    if isinstance(kind, Mapping):
        return pa.struct([(name, arrow_type(item)) for name, item in kind.items()])
    return _SCALARS[kind]


def rows_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Convert rows of JSON values to a table. A column that no single type can hold becomes text, see `_array`."""
    names = dict.fromkeys(chain.from_iterable(rows))
    columns = {}
    for name in names:
        mixed: list[Any] = []
        array = _array([row.get(name) for row in rows], mixed)
        columns[_utf8(name)] = (array, MIXED if mixed else None)
    schema = pa.schema([pa.field(name, array.type, metadata=mark) for name, (array, mark) in columns.items()])
    return pa.Table.from_arrays([array for array, _ in columns.values()], schema=schema)


def _array(values: Sequence[Any], mixed: list[Any], depth: int = 0) -> pa.Array:
    """Convert JSON values to an array that holds all of them: numbers that fit, lists, objects with all their keys.

    Values of other kinds together become text, strings as they are and the rest as JSON, and are appended to `mixed`.
    Lone surrogates become escapes, as in JSON lines.
    """
    known = [value for value in values if value is not None]
    kinds, is_missing = set(map(type, known)), pa.array([value is None for value in values], pa.bool_())
    if kinds == {dict} and depth < _MAX_DEPTH:
        names = dict.fromkeys(chain.from_iterable(known))
        if len(names) <= _MAX_FIELDS:
            fields = {
                _utf8(name): _array([None if item is None else item.get(name) for item in values], mixed, depth + 1)
                for name in names
            } or {_NO_KEYS: pa.nulls(len(values))}
            return pa.StructArray.from_arrays(list(fields.values()), list(fields), mask=is_missing)
    elif kinds == {list} and depth < _MAX_DEPTH:
        offsets = pa.array(accumulate((len(value or ()) for value in values), initial=0), pa.int32())
        items = _array(list(chain.from_iterable(known)), mixed, depth + 1)
        return pa.ListArray.from_arrays(offsets, items, mask=is_missing)
    elif kinds <= {int, float} or kinds in ({str}, {bool}):
        with suppress(*CONVERSION_ERRORS):
            return pa.array(values)
    if kinds != {str}:
        mixed += known
    return pa.array([None if value is None else _utf8(_text(value)) for value in values], TEXT)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=plain)


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


# ---- columns of several parts


def merged(left: Iterable[pa.Field], right: Iterable[pa.Field]) -> list[pa.Field]:
    """Return the columns of two tables, with types that hold the values of both; text where there is none."""
    lefts, rights = {field.name: field for field in left}, {field.name: field for field in right}
    fields = []
    for name, either in (lefts | rights).items():
        if name not in lefts or name not in rights:
            fields.append(either.with_nullable(True))
            continue
        one, other = lefts[name], rights[name]
        kind, metadata = _merged_type(one.type, other.type), {**(one.metadata or {}), **(other.metadata or {})}
        fields.append(pa.field(name, kind, one.nullable or other.nullable, metadata or None))
    return fields


def _merged_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if pa.types.is_struct(left) and pa.types.is_struct(right):
        fields = [field for field in merged(left, right) if field != _OBJECT.field(0)] or list(_OBJECT)
        return pa.struct(fields) if len(fields) <= _MAX_FIELDS else TEXT
    if pa.types.is_list(left) and pa.types.is_list(right):
        return pa.list_(_merged_type(left.value_type, right.value_type))
    if pa.types.is_dictionary(left) != pa.types.is_dictionary(right):
        left, right = (item.value_type if pa.types.is_dictionary(item) else item for item in (left, right))
        return _merged_type(left, right)
    with suppress(pa.ArrowInvalid, pa.ArrowTypeError):
        schemas = [pa.schema([("", kind)]) for kind in (left, right)]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    return TEXT


def storable(field: pa.Field) -> pa.Field:
    """Replace parts of a type of which nothing is known (only null, or only objects without keys) by text."""
    return field.with_type(_changed(field.type, lambda kind: TEXT if kind in (pa.null(), _OBJECT) else kind))


def becomes_text(old: pa.DataType, new: pa.DataType) -> bool:
    """Return True if `converted` turns values other than strings into text."""
    if new == TEXT:
        return not any(test(old) for test in (pa.types.is_string, pa.types.is_null, pa.types.is_dictionary))
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return any(becomes_text(field.type, new.field(field.name).type) for field in old if field != _OBJECT.field(0))
    return pa.types.is_list(old) and pa.types.is_list(new) and becomes_text(old.value_type, new.value_type)


def converted(column: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    """Convert a column to a type of `merged` that it is a part of.

    Raises:
        ArrowInvalid: when a value does not fit: a large integer into a float, for example.
        FileError: when the column cannot be converted at all.
    """
    if column.type == kind:
        return column
    if not becomes_text(column.type, kind):
        return column.cast(kind)
    values = [_fitted(row[""], kind) for row in to_rows(pa.table({"": column}), name)]
    return pa.chunked_array([pa.array(values, kind)])


def _fitted(value: Any, kind: pa.DataType) -> Any:
    """Turn the parts of a value into text that are text in a type. Keys without a value are left out."""
    if value is None:
        return None
    if kind == TEXT:
        return _text(_without_nulls(value))
    if pa.types.is_struct(kind):
        return {field.name: _fitted(value.get(field.name), field.type) for field in kind}
    return [_fitted(item, kind.value_type) for item in value] if pa.types.is_list(kind) else value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return list(map(_without_nulls, value)) if isinstance(value, list) else value


def side_by_side(left: pa.Table, right: pa.Table) -> pa.Table:
    """Return one table with the columns of two. A table without columns does not know its number of rows."""
    metadata = {**(left.schema.metadata or {}), **(right.schema.metadata or {})}
    schema = pa.schema([*left.schema, *right.schema], metadata)
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
    """Apply `change` to a type, or else to all types nested in it."""
    if (new := change(kind)) != kind:
        return new
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
    return kind
