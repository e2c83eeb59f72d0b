"""Values of a table's cells, checked; messages name the row and the column."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from training.data.columns import Columns
from training.data.tables import Row, read_rows

MAX_NUMBER = 1e12
"""Largest label of regression: gradients of its squared error, and their norm, are finite in float32."""


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
    """Return a finite number of at most `MAX_NUMBER`."""
    value = filled_cell(location, row, name)
    number = to_number(value)
    if not math.isfinite(number):
        raise ValueError(f"{location}: `{name}` must be a number: `{str(value)[:60]}`")
    if abs(number) > MAX_NUMBER:
        raise ValueError(f"{location}: `{name}` is beyond ±{MAX_NUMBER:g}: `{value}`; scale all of them down")
    return number


def to_number(value: Any) -> float:
    """Return a value as a number; NaN if it is none. Truth values and `1_000` are numbers in Python, but not here."""
    try:
        return math.nan if isinstance(value, bool) or "_" in str(value) else float(value)
    except (TypeError, ValueError):
        return math.nan
    except OverflowError:  # an integer with more digits than a float can hold
        return math.inf
