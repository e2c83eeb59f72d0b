"""Tagged sentences from tables and CoNLL files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks.tagging import TaggingExample
from tasks.tags import find_malformed_tag
from training.data.cells import read_table, text_cell, text_list
from training.data.columns import Columns
from training.data.conll import is_conll_column, read_conll
from training.data.examples import Examples, RowError
from training.data.table_examples import read_texts
from training.data.tables import TABLES, WITH_LISTS, kind_of
from training.text.documents import suffix_of


def read_tagging(path: Path, columns: Columns) -> Examples:
    """Read sentences from a table with lists in columns `tokens` and `tags`; any other file is read as CoNLL."""
    if kind_of(path) in (*WITH_LISTS, ".csv", ".json"):
        examples = _read_table(path, columns)
    else:
        tokens, tags = (name if is_conll_column(name) else None for name in (columns.tokens, columns.tags))
        examples = read_conll(path, tokens=tokens, tags=tags)
    if odd := find_malformed_tag({tag for example in examples for tag in example.tags}):
        location = next(location for location, example in examples.located() if odd[0] in example.tags)
        raise ValueError(f"{location}: tag `{odd[0]}`: {odd[1]}")
    return examples


def read_untagged(path: Path, columns: Columns) -> Examples:
    """Read sentences without their tags: lists of words or texts from a table, lines of a .txt file, or CoNLL."""
    if suffix_of(path) == ".txt":
        return read_texts(path, columns).map(lambda text: TaggingExample((), source=text))
    if kind_of(path) not in (*TABLES, ".json"):
        return read_tagging(path, columns).map(lambda example: replace(example, tags=()))

    def example_of(location: str, row: dict[str, Any]) -> TaggingExample:
        if columns.tokens in row:
            return TaggingExample(words=text_list(location, row, columns.tokens))
        return TaggingExample((), source=text_cell(location, row, columns.text))

    return read_table(path, columns, example_of)


def _read_table(path: Path, columns: Columns) -> Examples:
    def example_of(location: str, row: dict[str, Any]) -> TaggingExample:
        words, tags = (text_list(location, row, name) for name in (columns.tokens, columns.tags))
        if len(words) != len(tags):
            raise RowError(location, f"{len(words)} `{columns.tokens}`, but {len(tags)} `{columns.tags}`")
        if not all(map(str.strip, tags)):
            raise RowError(location, f"one of `{columns.tags}` is empty")
        return TaggingExample(words=words, tags=tags)

    return read_table(path, columns, example_of, (columns.tokens, columns.tags))
