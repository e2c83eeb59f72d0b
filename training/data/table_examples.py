"""Examples from tables: classification, regression, multiple choice, texts and pairs of texts."""

from __future__ import annotations

import itertools
from pathlib import Path

from tasks.classification import ClassificationExample
from tasks.multiple_choice import MultipleChoiceExample
from tasks.regression import RegressionExample
from training.data.cells import (
    filled_cell,
    labels_cell,
    number_cell,
    optional_text,
    table_rows,
    text_cell,
    text_list,
    to_number,
)
from training.data.columns import Columns
from training.data.examples import Examples
from training.data.tables import TABLES, Row, kind_of
from training.text.documents import read_lines


def read_classification(path: Path, columns: Columns) -> Examples:
    """Read texts or pairs with a label each, or multi-label data (see `labels_cell`)."""
    examples = Examples()
    for location, row in table_rows(path, columns):
        text, pair = text_cell(location, row, columns.text), optional_text(location, row, columns.text_pair)
        found = labels_cell(location, row, columns)
        kind = {"label": found} if isinstance(found, str) else {"labels": found}
        examples.add(location, ClassificationExample(text=text, text_pair=pair, **kind))
    return examples


def check_labels(examples: Examples) -> None:
    """Check the labels of classification in all files together.

    Raises:
        ValueError: naming a row, if it has a list and another a single label, or its label is a number that other rows
            write otherwise.
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
            if number % 1 == 0 and (name := names.setdefault(number, label)) != label:
                raise ValueError(f"{location}: label `{label}` is `{name}` in other rows; write it in one way")


def read_regression(path: Path, columns: Columns, *, need_pairs: bool = False) -> Examples:
    """Read texts or pairs with numbers."""
    examples, read_pair = Examples(), text_cell if need_pairs else optional_text
    for location, row in table_rows(path, columns):
        text, pair = text_cell(location, row, columns.text), read_pair(location, row, columns.text_pair)
        label = number_cell(location, row, columns.label)
        examples.add(location, RegressionExample(text=text, text_pair=pair, label=label))
    return examples


def read_multiple_choice(path: Path, columns: Columns, *, labelled: bool = True) -> Examples:
    """Read choices from a list in column `choices`, or from SWAG's columns (sent1, sent2, ending0, ending1 ...)."""
    examples = Examples()
    for location, row in table_rows(path, columns):
        if "ending0" in row:
            endings = itertools.takewhile(row.__contains__, (f"ending{number}" for number in itertools.count()))
            row |= {columns.choices: [row[name] for name in endings]}
            row |= {columns.context: row.get("sent1"), columns.question: row.get("sent2")}
        context, question = (optional_text(location, row, name) for name in (columns.context, columns.question))
        choices, label = text_list(location, row, columns.choices), None
        if labelled:
            number = to_number(filled_cell(location, row, columns.label))
            if number not in range(len(choices)):  # pandas writes 1 as 1.0 if other rows have no value
                raise ValueError(
                    f"{location}: `{columns.label}` must be the number of a choice, from 0: `{row[columns.label]}`"
                )
            label = int(number)
        example = MultipleChoiceExample(
            choices, context=context or "", question=question or "", label=label, id=str(row.get("id", ""))
        )
        examples.add(location, example)
    return examples


def _has_columns(path: Path) -> bool:
    return kind_of(path) in (*TABLES, ".json")


def read_texts(path: Path, columns: Columns) -> Examples:
    """Read the texts of a table, or the lines of any other file that are not blank."""
    if _has_columns(path):
        rows = table_rows(path, columns)
        return Examples((location, text_cell(location, row, columns.text)) for location, row in rows)
    lines = enumerate(read_lines(path), start=1)
    return Examples((f"`{path}`, line {number}", line) for number, line in lines if line.strip())


def read_text_pairs(path: Path, columns: Columns) -> Examples:
    """Read tuples of a text and its pair, None without one, from a table; else, the lines that are not blank."""
    if not _has_columns(path):
        return read_texts(path, columns).map(lambda text: (text, None))
    rows = table_rows(path, columns)
    return Examples(
        (location, (text_cell(location, row, columns.text), optional_text(location, row, columns.text_pair)))
        for location, row in rows
    )


def read_positives(path: Path, columns: Columns, min_label: float | None = None) -> Examples:
    """Read tuples of a text, its pair, and its negative if the table has such a column.

    Args:
        min_label: skip pairs with a lower label; None reads all pairs and ignores labels.
    """

    def texts(location: str, row: dict[str, object]) -> tuple[str, ...]:
        names = [columns.text, columns.text_pair] + [columns.negative] * (columns.negative in row)
        return tuple(text_cell(location, row, name) for name in names)

    def is_positive(item: Row) -> bool:
        return min_label is None or number_cell(*item, columns.label) >= min_label

    rows = filter(is_positive, table_rows(path, columns))
    return Examples((location, texts(location, row)) for location, row in rows)
