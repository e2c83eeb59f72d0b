"""Values of a table's cells, checked; messages name the row and the column.

Several labels of classification are a list (JSON lines, Parquet), a text with a separator (`--columns.label-separator
"|"`), or columns of 0 and 1 (`--columns.label-columns toxic insult threat`). An empty list, text or row of zeros is a
text without any label.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from training.data.columns import Columns
from training.data.tables import Row, read_rows


def table_rows(path: Path, columns: Columns) -> Iterator[Row]:
    """Yield the rows of a table.

    Raises:
        ValueError: as `read_rows`; also if a row lacks a column that the user named.
    """
    for location, row in read_rows(path, header=columns.header):
        for name in columns.custom:
            if name not in row:
                raise ValueError(_missing(location, row, name))
        yield location, row


def filled_cell(location: str, row: Mapping[str, Any], name: str) -> Any:
    """Return the value of a cell that must not be empty."""
    if name not in row:
        raise ValueError(_missing(location, row, name))
    value = row[name]
    if value is None or value != value or not str(value).strip():  # readers turn a missing number into NaN
        raise ValueError(f"{location}: `{name}` is empty")
    return value


def _missing(location: str, row: Mapping[str, Any], name: str) -> str:
    is_default = name in {field.name for field in fields(Columns)}
    hint = f"; name it with --column {name}=NAME" if is_default else ""
    return f"{location}: no column `{name}` (columns: {', '.join(f'`{column}`' for column in row)}){hint}"


def optional_text(location: str, row: Mapping[str, Any], name: str) -> str | None:
    """Return a text; None if the cell is empty or the column is missing."""
    value = row.get(name)
    if not isinstance(value, str | None):
        raise ValueError(f"{location}: `{name}` must be a string: `{value}`")
    return value if value and value.strip() else None


def text_cell(location: str, row: Mapping[str, Any], name: str) -> str:
    """Return a text that must not be empty."""
    filled_cell(location, row, name)
    return optional_text(location, row, name) or ""


def text_list(location: str, row: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return a list of texts that must not be empty."""
    values = filled_cell(location, row, name)
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{location}: `{name}` must be a list of strings: `{str(values)[:60]}`")
    return tuple(values)


def number_cell(location: str, row: Mapping[str, Any], name: str) -> float:
    """Return a finite number."""
    value = filled_cell(location, row, name)
    number = to_number(value)
    if not math.isfinite(number):
        raise ValueError(f"{location}: `{name}` must be a number: `{str(value)[:60]}`")
    return number


def to_number(value: Any) -> float:
    """Return a value as a number; NaN if it is none. Truth values and `1_000` are numbers in Python, but not here."""
    try:
        return math.nan if isinstance(value, bool) or "_" in str(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def labels_cell(location: str, row: Mapping[str, Any], columns: Columns) -> str | tuple[str, ...]:
    """Return the label of a row, or its labels in data with any number of them.

    Raises:
        ValueError: naming the location and the value that is no label.
    """
    if columns.label_columns:
        return tuple(name for name in columns.label_columns if _is_set(location, row, name))
    value = row.get(columns.label)
    if columns.label_separator and isinstance(value, str):
        value = value.split(columns.label_separator) if value.strip() else []
    elif not isinstance(value, list):
        label = _label(location, filled_cell(location, row, columns.label), columns)
        return (label,) if columns.label_separator else label
    labels = tuple(_label(location, item, columns) for item in value)
    if not all(labels) or len({*labels}) < len(labels):
        raise ValueError(f"{location}: one of the labels is empty or occurs twice: `{', '.join(labels)[:60]}`")
    return labels


def _is_set(location: str, row: Mapping[str, Any], name: str) -> bool:
    value = filled_cell(location, row, name)
    number = float(value) if isinstance(value, bool) else to_number(value)
    if number not in (0, 1):
        raise ValueError(f"{location}: `{name}` is one of the label columns, and must be 0 or 1: `{str(value)[:60]}`")
    return number == 1


def _label(location: str, value: Any, columns: Columns) -> str:
    if not isinstance(value, str | int | float):
        raise ValueError(
            f"{location}: `{columns.label}` must be a string or a number, or a list of them: `{str(value)[:60]}`"
        )
    return str(value).strip()
