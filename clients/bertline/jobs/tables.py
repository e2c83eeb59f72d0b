"""Results and kept columns as Arrow tables, which all parts of a job hold in the same columns and types."""

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


_MISFITS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError, RecursionError)
"""What pyarrow raises about a value that a type cannot hold."""
_MAX_DEPTH = 30
"""Of lists and objects in each other; Parquet ends at about 100."""


def infer(rows: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """Columns and types of rows; strings where nothing is known."""
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if _is_unicode(name)]
    return pa.schema([(name, _type([row.get(name) for row in rows])) for name in names])


def _is_unicode(name: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in name)


def _type(values: Sequence[Any]) -> pa.DataType:
    """That of all values, or of the first ones, where they are of several: what most rows have is what those have."""
    for some in ([values], ([value] for value in values if value is not None)):
        for tried in some:
            try:
                return _known(pa.array(tried).type)
            except _MISFITS:
                continue
    return pa.string()


def _known(kind: pa.DataType, depth: int = 0) -> pa.DataType:
    """A type without what is not known in it, nor what Parquet does not have: objects without keys, and any depth."""
    if depth > _MAX_DEPTH:
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_known(kind.value_type, depth + 1))
    if pa.types.is_struct(kind) and kind.num_fields:
        return pa.struct([(field.name, _known(field.type, depth + 1)) for field in kind])
    return pa.string() if pa.types.is_null(kind) or pa.types.is_struct(kind) else kind


def misfit(row: Mapping[str, Any], schema: pa.Schema) -> str:
    """Why a row does not fit into the columns; empty if it does."""
    for name, value in row.items():
        if name not in schema.names:
            return f"`{name}` is a column that the first rows have not; leave it out with --drop, or write JSONL"
        kind = schema.field(name).type
        try:
            pa.array([value], kind)
            fits = _holds(kind, value)
        except _MISFITS:
            fits = False
        if not fits:
            return f"`{name}` is not a {kind}, as in the first rows; mend it, leave it out with --drop, or write JSONL"
    return ""


def _holds(kind: pa.DataType, value: Any) -> bool:
    """Whether pyarrow, that takes it, does so without a loss: it leaves keys out that are not known, makes a list of a
    string's letters, 1.0 of true and 9 of 9.99."""
    if value is None:
        return True
    if pa.types.is_list(kind):
        return isinstance(value, list) and all(_holds(kind.value_type, item) for item in value)
    if pa.types.is_struct(kind):
        known = {field.name: field.type for field in kind}
        return isinstance(value, Mapping) and all(
            name in known and _holds(known[name], item) for name, item in value.items()
        )
    if pa.types.is_integer(kind):
        return not isinstance(value, float) or value.is_integer()
    return not (pa.types.is_floating(kind) and isinstance(value, bool))


def rows_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table | None:
    """Rows as a table; None where one of them is a misfit."""
    kinds = {field.name: field.type for field in schema}
    if any(name not in kinds for row in rows for name in row):
        return None
    lossy = (pa.types.is_nested, pa.types.is_integer, pa.types.is_floating)
    careful = [name for name, kind in kinds.items() if any(is_kind(kind) for is_kind in lossy)]
    if not all(_holds(kinds[name], row.get(name)) for name in careful for row in rows):
        return None
    try:
        return pa.Table.from_pylist(list(rows), schema=schema)
    except _MISFITS:
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
    """One table of the columns of two. One that has no column knows no rows."""
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
