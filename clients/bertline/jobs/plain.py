"""What JSON, and the functions of pyarrow, can hold of what Parquet can."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from bertline.jobs.storage import FileError


def plain_json(value: Any) -> Any:
    """A string or number of JSON for a value that it has none for, as `default` of `json.dumps`."""
    known: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
        (bytes, lambda data: base64.b64encode(data).decode("ascii")),
        ((datetime.date, datetime.time), lambda moment: moment.isoformat()),
        (datetime.timedelta, lambda span: span.total_seconds()),
    )
    return next((write(value) for kind, write in known if isinstance(value, kind)), str(value))


def without_views(table: pa.Table) -> pa.Table:
    """Views of strings as strings, which functions of pyarrow understand."""
    return _retyped(table, lambda kind: _OF_VIEWS.get(kind, kind))


def to_rows(table: pa.Table, where: str) -> list[dict[str, Any]]:
    """Rows of Python's own types; moments that those cannot hold, of nanoseconds or of far years, as strings.

    Raises:
        FileError: when a column can be neither.
    """
    table = _retyped(table, _without_nanoseconds, where)
    try:
        return table.to_pylist()
    except (ValueError, OverflowError):
        return _retyped(table, lambda kind: pa.string() if pa.types.is_temporal(kind) else kind, where).to_pylist()


def to_inputs(table: pa.Table, where: str) -> list[dict[str, Any]]:
    """The same, with moments as numbers, so that nobody takes them for texts."""
    return to_rows(_retyped(without_views(table), _number_of_moment), where)


def is_valid(table: pa.Table) -> bool:
    """Whether all values are what their types say, as strings that are not UTF-8 are not."""
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def escaped(table: pa.Table, where: str) -> dict[str, Any]:
    """The only row of a table, to be told: strings with escapes for what is not UTF-8, those in lists as bytes."""
    (row,) = to_inputs(_retyped(without_views(table), lambda kind: _BYTES.get(kind, kind)), where)
    return {
        name: value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
        for name, value in row.items()
    }


_BYTES: Mapping[pa.DataType, pa.DataType] = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
_OF_VIEWS: Mapping[pa.DataType, pa.DataType] = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def _without_nanoseconds(kind: pa.DataType) -> pa.DataType:
    """Of these pyarrow makes what depends on other libraries that are there."""
    return pa.string() if pa.types.is_temporal(kind) and getattr(kind, "unit", "") == "ns" else kind


def _number_of_moment(kind: pa.DataType) -> pa.DataType:
    if not pa.types.is_temporal(kind) or pa.types.is_interval(kind):
        return kind
    return pa.int64() if kind.bit_width == 64 else pa.int32()


def _retyped(table: pa.Table, change: Callable[[pa.DataType], pa.DataType], where: str = "") -> pa.Table:
    for index, field in enumerate(table.schema):
        kind = _changed(field.type, change)
        if kind == field.type:
            continue
        try:
            table = table.set_column(index, field.with_type(kind), _cast(table.column(index), kind))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise FileError(
                f"cannot read column `{field.name}` of {where} ({field.type}); leave it out with --drop"
            ) from error
    return table


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_duration(column.type):  # which is a number to pyarrow's strings
        column = column.cast(pa.int64())
    return column.cast(kind)


def _changed(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A type with the types in it changed."""
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
