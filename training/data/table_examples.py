"""Examples from tables: classification, regression, multiple choice, texts and pairs of texts."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks.classification import ClassificationExample
from tasks.multiple_choice import MultipleChoiceExample
from tasks.regression import RegressionExample
from training.data.cells import (
    hot_positions,
    is_hot,
    label_cell,
    labels_cell,
    number_cell,
    optional_text,
    read_table,
    text_cell,
    text_list,
    to_number,
)
from training.data.columns import Columns
from training.data.examples import Examples, RowError
from training.data.tables import TABLES, kind_of
from training.text.documents import read_lines

_ENDINGS = [f"ending{number}" for number in range(100)]
"""SWAG's columns of choices."""


def read_classification(path: Path, columns: Columns) -> Examples:
    """Read texts or pairs with a label each, or multi-label data (see `labels_cell`)."""

    def example_of(location: str, row: dict[str, Any]) -> ClassificationExample:
        text, pair = text_cell(location, row, columns.text), optional_text(location, row, columns.text_pair)
        found = labels_cell(location, row, columns)
        kind = {"label": found} if isinstance(found, str) else {"labels": found}
        return ClassificationExample(text=text, text_pair=pair, **kind)

    label_names = columns.label_columns or (columns.label,)
    return _without_hot(read_table(path, columns, example_of, (columns.text, columns.text_pair, *label_names)), columns)


def _without_hot(examples: Examples, columns: Columns) -> Examples:
    """Return examples with the numbers of their labels if all have multi-hot rows of one length.

    Raises:
        RowError: if only some rows look like multi-hot ones.
    """
    rows = [example.labels or () for example in examples]
    if columns.label_columns or columns.label_separator or not any(map(is_hot, rows)):
        return examples
    if all(map(is_hot, rows)) and len({*map(len, rows)}) == 1:
        width = len(rows[0])
        note = f"`{columns.label}` has {width} values of 0 and 1 a row: labels `0` to `{width - 1}`, by position"
        found = examples.map(lambda example: replace(example, labels=hot_positions(example.labels)))
        found.notes.append(f"{note}; for other names, write columns of 0 and 1 (--columns.label-columns)")
        return found
    for location, example in examples.located():
        if example.labels and len({*example.labels}) < len(example.labels):
            problem = f"`{columns.label}` looks multi-hot, but not all rows have as many values of 0 and 1"
            raise RowError(location, problem, ", ".join(example.labels))
    return examples


def check_labels(examples: Examples) -> None:
    """Check the labels of classification in all files together.

    Raises:
        ValueError: naming a row, if it has a list and another a single label, or its label is a number that other rows
            write otherwise, such as 1 and 1.0; 01 and 1 are two labels.
    """
    kinds: dict[bool, str] = {}
    names: dict[float, str] = {}
    for location, example in examples.located():
        kinds.setdefault(example.labels is None, location)
    if len(kinds) > 1:
        raise ValueError(f"{kinds[True]}: a single label, but {kinds[False]} has a list; write lists in all rows")
    for location, example in examples.located():
        for label in (example.label,) if example.labels is None else example.labels:
            number = to_number(label)
            if number % 1 or (name := names.setdefault(number, label)) == label:
                continue
            if not (label.isdecimal() and name.isdecimal()):
                raise ValueError(f"{location}: label `{label}` is `{name}` in other rows; write it in one way")


def read_regression(path: Path, columns: Columns, *, need_pairs: bool = False) -> Examples:
    """Read texts or pairs with numbers."""
    read_pair = text_cell if need_pairs else optional_text

    def example_of(location: str, row: dict[str, Any]) -> RegressionExample:
        text, pair = text_cell(location, row, columns.text), read_pair(location, row, columns.text_pair)
        label_cell(location, row, columns)
        return RegressionExample(text=text, text_pair=pair, label=number_cell(location, row, columns.label))

    return read_table(path, columns, example_of, (columns.text, columns.text_pair, columns.label))


def read_multiple_choice(path: Path, columns: Columns, *, labelled: bool = True) -> Examples:
    """Read choices from a list in column `choices`, or from SWAG's columns (sent1, sent2, ending0, ending1 ...)."""

    def example_of(location: str, row: dict[str, Any]) -> MultipleChoiceExample:
        if "ending0" in row:
            endings = list(itertools.takewhile(row.__contains__, _ENDINGS))
            row |= {columns.choices: [row[name] for name in endings]}
            row |= {columns.context: row.get("sent1"), columns.question: row.get("sent2")}
        context, question = (optional_text(location, row, name) for name in (columns.context, columns.question))
        choices, label = text_list(location, row, columns.choices), None
        if labelled:
            number = to_number(label_cell(location, row, columns))
            if number not in range(len(choices)):  # pandas writes 1 as 1.0 if other rows have no value
                problem = f"`{columns.label}` must be the number of a choice, from 0"
                raise RowError(location, problem, row[columns.label])
            label = int(number)
        return MultipleChoiceExample(
            choices, context=context or "", question=question or "", label=label, id=str(row.get("id", ""))
        )

    used = (columns.context, columns.question, columns.choices, columns.label, "sent1", "sent2", *_ENDINGS)
    return read_table(path, columns, example_of, used)


def _has_columns(path: Path) -> bool:
    return kind_of(path) in (*TABLES, ".json")


def read_texts(path: Path, columns: Columns) -> Examples:
    """Read the texts of a table, or the lines of any other file that are not blank."""
    if _has_columns(path):
        return read_table(path, columns, lambda location, row: text_cell(location, row, columns.text))
    lines = enumerate(read_lines(path), start=1)
    return Examples((f"`{path}`, line {number}", line) for number, line in lines if line.strip())


def read_text_pairs(path: Path, columns: Columns) -> Examples:
    """Read tuples of a text and its pair, None without one, from a table; else, the lines that are not blank."""
    if not _has_columns(path):
        return read_texts(path, columns).map(lambda text: (text, None))

    def example_of(location: str, row: dict[str, Any]) -> tuple[str, str | None]:
        return text_cell(location, row, columns.text), optional_text(location, row, columns.text_pair)

    return read_table(path, columns, example_of)
