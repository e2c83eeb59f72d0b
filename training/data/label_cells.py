"""Labels of classification in the cells of a row: one label, or any number of them.

Several labels are a list (JSON lines, Parquet), a text with a separator (`--columns.label-separator "|"`), or columns
of 0 and 1 (`--columns.label-columns toxic insult threat`). An empty list, text or row of zeros is a text without any
label.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.data.cells import filled_cell, to_number
from training.data.columns import Columns


def labels_cell(location: str, row: Mapping[str, Any], columns: Columns) -> str | tuple[str, ...]:
    """Return the label of a row, or its labels in data with any number of them.

    Raises:
        ValueError: naming the location and the value that is no label.
    """
    if columns.label_columns:
        return tuple(name for name in columns.label_columns if _is_set(location, row, name))
    value = row.get(columns.label)
    if columns.label_separator and isinstance(value, str):
        return _split(location, value, columns)
    value = filled_cell(location, row, columns.label)
    if isinstance(value, list):
        return _checked(location, tuple(_name(location, item, columns) for item in value))
    name = _name(location, value, columns)
    return (name,) if columns.label_separator else name


def _is_set(location: str, row: Mapping[str, Any], name: str) -> bool:
    value = filled_cell(location, row, name)
    number = float(value) if isinstance(value, bool) else to_number(value)
    if number not in (0, 1):
        raise ValueError(f"{location}: `{name}` is one of the label columns, and must be 0 or 1: `{str(value)[:60]}`")
    return number == 1


def _split(location: str, value: str, columns: Columns) -> tuple[str, ...]:
    parts = value.split(columns.label_separator) if value.strip() else []
    return _checked(location, tuple(part.strip() for part in parts))


def _name(location: str, value: Any, columns: Columns) -> str:
    if not isinstance(value, str | int | float):
        raise ValueError(
            f"{location}: `{columns.label}` must be a string or a number, or a list of them: `{str(value)[:60]}`"
        )
    return str(value).strip()


def _checked(location: str, labels: tuple[str, ...]) -> tuple[str, ...]:
    if not all(labels):
        raise ValueError(f"{location}: one of the labels is empty: `{', '.join(labels)[:60]}`")
    if len({*labels}) < len(labels):
        raise ValueError(f"{location}: a label occurs twice: `{', '.join(labels)[:60]}`")
    return labels
