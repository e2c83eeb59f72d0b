"""Values of a table's cells, checked; messages name the row and the column.

Several labels of classification are a list (JSON lines, Parquet), a text with a separator (`--columns.label-separator
"|"`), or columns of 0 and 1 (`--columns.label-columns toxic insult threat`). An empty list, text or row of zeros is a
text without any label.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import Any

from training.data.columns import Columns
from training.data.examples import BadRows, Examples, RowError
from training.data.tables import Row, raise_error, read_rows

NOT_DATA = ("id", "idx")
"""Columns that are not reported if they are unused."""
MAX_LISTED = 8
"""Most unused columns that are named."""

_HOT = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "0.": 0, "1.": 1, "False": 0, "True": 1}
"""Values of multi-hot rows."""
_LIST = re.compile(r"(?:[A-Za-z_.]+\()?(?:\[(.*)\]|\{(.*)\}|\((.*)\))(?:,\s*dtype=.*)?\)?", re.DOTALL)
"""A list, set, dictionary or tuple as Python, numpy, torch or JSON print it."""


def table_rows(path: Path, columns: Columns, on_error: Callable[[RowError], None] = raise_error) -> Iterator[Row]:
    """Yield the rows of a table.

    Raises:
        ValueError: as `read_rows`; also if a row lacks a column that the user named.
    """
    custom = columns.custom
    for location, row in read_rows(path, header=columns.header, on_error=on_error):
        if missing := next((name for name in custom if name not in row), None):
            on_error(_missing(location, row, missing))
        else:
            yield location, row


def read_table(
    path: Path, columns: Columns, example_of: Callable[[str, dict[str, Any]], Any], used: Collection[str] | None = None
) -> Examples:
    """Read an example from each row of a table; note the columns that are unused, and the rows that are left out.

    Args:
        example_of: function from location and row to the example. Rows for which it raises `RowError` are left out if
            they are empty and the user skips those.
        used: names of the columns that it reads; None to note no others.

    Raises:
        ValueError: naming the rows that cannot be used.
    """
    examples, bad, left_out, names = Examples(), BadRows(), BadRows(), dict[str, None]()

    def reject(error: RowError) -> None:
        (left_out if error.is_empty and columns.skips_empty else bad).add(error)

    for location, row in table_rows(path, columns, reject):
        names |= dict.fromkeys(row)
        try:
            examples.add(location, example_of(location, row))
        except RowError as error:
            reject(error)
    if bad or (left_out and not examples):
        hint = "; --skip-empty leaves out rows without text or label" if bad.has_empty and examples else ""
        raise ValueError(f"{bad or left_out}{hint}")
    if left_out:
        num_rows = len(examples) + len(left_out)
        examples.notes.append(f"{len(left_out):,} of {num_rows:,} rows are left out: {left_out}")
    known = names if used is None else {*used, *NOT_DATA}
    if unused := [name for name in names if name.strip() and name not in known]:
        more = ", …" if len(unused) > MAX_LISTED else ""
        listed = ", ".join(f"`{name}`" for name in unused[:MAX_LISTED])
        examples.notes.append(f"unused columns of `{path}`: {listed}{more}")
    return examples


def filled_cell(location: str, row: Mapping[str, Any], name: str) -> Any:
    """Return the value of a cell that must not be empty."""
    if name not in row:
        raise _missing(location, row, name)
    value = row[name]
    if value is None or value != value or not str(value).strip():  # readers turn a missing number into NaN
        raise RowError(location, f"`{name}` is empty", is_empty=True)
    return value


def _missing(location: str, row: Mapping[str, Any], name: str) -> RowError:
    is_default = name in {field.name for field in fields(Columns)}
    hint = f"; name it with --column {name}=NAME" if is_default else ""
    there = ", ".join(f"`{column}`" for column in row)
    return RowError(location, f"no column `{name}` (columns: {there}){hint}", is_empty=True)


def optional_text(location: str, row: Mapping[str, Any], name: str) -> str | None:
    """Return a text; None if the cell is empty or the column is missing."""
    value = row.get(name)
    if value != value:  # NaN, as in `filled_cell`
        return None
    if not isinstance(value, str | None):
        raise RowError(location, f"`{name}` must be a string", value)
    return value if value and value.strip() else None


def text_cell(location: str, row: Mapping[str, Any], name: str) -> str:
    """Return a text that must not be empty."""
    filled_cell(location, row, name)
    return optional_text(location, row, name) or ""


def text_list(location: str, row: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return a list of texts that must not be empty."""
    values = filled_cell(location, row, name)
    if isinstance(values, str) and is_list_text(values):
        raise RowError(location, f"`{name}` is a list written as text; write lists in JSON lines or Parquet", values)
    if values == []:
        raise RowError(location, f"`{name}` is an empty list", is_empty=True)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise RowError(location, f"`{name}` must be a list of strings", values)
    return tuple(values)


def label_cell(location: str, row: Mapping[str, Any], columns: Columns, name: str = "") -> Any:
    """Return a label that must not be empty, or one of the marks of rows without a label.

    Args:
        name: its column; by default that of labels.
    """
    value = filled_cell(location, row, name or columns.label)
    if any(str(value).strip() == mark or to_number(value) == to_number(mark) for mark in columns.no_label):
        raise RowError(location, f"`{name or columns.label}` is `{value}`, no label", is_empty=True)
    return value


def number_cell(location: str, row: Mapping[str, Any], name: str) -> float:
    """Return a finite number."""
    value = filled_cell(location, row, name)
    number = to_number(value)
    if not math.isfinite(number):
        raise RowError(location, f"`{name}` must be a number", value)
    return number


def to_number(value: Any) -> float:
    """Return a value as a number; NaN if it is none. Truth values and `1_000` are numbers in Python, but not here."""
    try:
        return math.nan if isinstance(value, bool) or "_" in str(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def labels_cell(location: str, row: Mapping[str, Any], columns: Columns) -> str | tuple[str, ...]:
    """Return the label of a row, or its labels in data with any number of them.

    Rows of 0 and 1 are returned as they are, as only all rows together show if they are multi-hot (see `is_hot`).

    Raises:
        RowError: naming the location and the value that is no label.
    """
    if columns.label_columns:
        return tuple(name for name in columns.label_columns if _is_set(location, row, name, columns))
    value = row.get(columns.label)
    if isinstance(value, str) and is_list_text(value):
        cells = tuple(re.split(r"[\s,]+", value.strip("[] \t\n")))
        if is_hot(cells) and not columns.label_separator:
            return cells
        ways = "lists in JSON lines, one text with a separator (--columns.label-separator), or columns of 0 and 1"
        raise RowError(location, f"`{columns.label}` is a list written as text (write {ways})", value)
    if columns.label_separator and isinstance(value, str):
        value = value.split(columns.label_separator) if value.strip() else []
    elif not isinstance(value, list):
        label = _label(location, label_cell(location, row, columns), columns)
        return (label,) if columns.label_separator else label
    labels = tuple(_label(location, item, columns) for item in value)
    if is_hot(labels) and not columns.label_separator:
        return labels
    if any(isinstance(item, float) and item % 1 for item in value):
        raise RowError(location, f"`{columns.label}` is a list of fractions; write the names of labels", value)
    if not all(labels) or len({*labels}) < len(labels):
        raise RowError(location, "one of the labels is empty or occurs twice", ", ".join(labels))
    return labels


def is_list_text(text: str) -> bool:
    """Return whether a text is a list as a program prints it: `['a', 'b']`, `[0 1]`, `{"a"}`, but not `[CLS]`."""
    found = _LIST.fullmatch(text.strip())
    if not found:
        return False
    inside = next(item for item in found.groups() if item is not None).strip()
    signs = r"['\"]|^[-\d.\s]*,[-\d.,\s]*$" if found[3] is not None else r"['\",]|^(?:[-\d.\s]|True|False)+$"
    return not inside or bool(re.search(signs, inside))


def is_hot(labels: Collection[str]) -> bool:
    """Return whether labels may be a multi-hot row: at least two values, and all of them 0 or 1."""
    return len(labels) > 1 and {*labels} <= _HOT.keys()


def hot_positions(labels: Collection[str]) -> tuple[str, ...]:
    """Return the positions, from 0, at which a multi-hot row has a 1."""
    return tuple(str(position) for position, label in enumerate(labels) if _HOT[label])


def _is_set(location: str, row: Mapping[str, Any], name: str, columns: Columns) -> bool:
    value = label_cell(location, row, columns, name)
    number = float(value) if isinstance(value, bool) else to_number(value)
    if number not in (0, 1):
        raise RowError(location, f"`{name}` is one of the label columns, and must be 0 or 1", value)
    return number == 1


def _label(location: str, value: Any, columns: Columns) -> str:
    if not isinstance(value, str | int | float | Decimal):
        raise RowError(location, f"`{columns.label}` must be a string or a number, or a list of them", value)
    return str(value).strip()
