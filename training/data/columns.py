"""Names of the columns in which a table holds texts, labels and so on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from training.data.conll import is_conll_column
from training.data.tables import TABLES, kind_of, read_rows


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of columns, each a flag. `--column text=NAME` is the same as `--columns.text NAME`."""

    text: str = "text"
    """Text, or first text of a pair."""
    text_pair: str = "text_pair"
    """Second text of a pair. Optional: without a column of the default name, texts stand alone."""
    negative: str = "negative"
    """Contrastive training: a text unlike `text`, or a list of them; also columns of this name with a number, such as
    `negative_2`. Optional, as `text_pair` is."""
    label: str = "label"
    """Class, number (regression), or number of the right choice, from 0 (multiple choice)."""
    label_separator: str = ""
    """Multi-label classification: separator of the labels in the column `label`, such as `|`. Without it, lists in
    JSON lines and Parquet hold several labels."""
    label_columns: tuple[str, ...] = ()
    """Multi-label classification: columns of 0 and 1, instead of the column `label`. Their names are the labels."""
    tokens: str = "tokens"
    """Tagging: list of words. In CoNLL, a column number from 0, or a UD name such as `form`."""
    tags: str = "tags"
    """Tagging: list of tags, one for each word. In CoNLL as `tokens`, with UD names such as `upos` or `xpos`."""
    context: str = "context"
    """Multiple choice: text before the choices; optional, as `text_pair` is. Spans: text that holds the answers."""
    question: str = "question"
    """Multiple choice: text before each choice; optional, as `text_pair` is. Spans: the question."""
    choices: str = "choices"
    """Multiple choice: list of texts."""
    header: bool = True
    """Read the names of columns from the first line of a TSV or CSV. Without a header they are 0, 1, 2 and so on."""
    skip_empty: bool = False
    """Leave out rows of tables without text or label, instead of refusing them. Also written `--skip-empty`."""
    no_label: tuple[str, ...] = ()
    """Labels that mark rows without a label, such as -1 or -. These rows, and empty ones, are left out."""

    @property
    def skips_empty(self) -> bool:
        """True if rows without text or label are left out."""
        return self.skip_empty or bool(self.no_label)

    @property
    def custom(self) -> list[str]:
        """Columns without their default name. Tables must have them."""
        names = [field for field in fields(self) if field.name not in _NOT_NAMES]
        named = [getattr(self, field.name) for field in names if getattr(self, field.name) != field.default]
        return [*named, *self.label_columns]

    def without_labels(self) -> Columns:
        """Return the columns of data that may lack the labels."""
        default = Columns()
        return replace(self, label=default.label, label_columns=(), tags=default.tags)


_NOT_NAMES = ("header", "label_separator", "label_columns", "skip_empty", "no_label")
"""Fields that do not name one column."""


def dev_columns(recipe: Mapping[str, Any]) -> Columns:
    """Return the columns of a run's dev data, from its recipe.json; ignore fields that `Columns` does not have."""
    named = recipe.get("dev_columns", recipe.get("columns", {}))
    values = {field.name: named[field.name] for field in fields(Columns) if field.name in named}
    tuples: dict[str, Any] = {name: tuple(values.get(name, ())) for name in ("label_columns", "no_label")}
    return Columns(**values | tuples)


def existing_columns(paths: Sequence[Path], columns: Columns) -> Columns:
    """Return the columns that some tables have; all others get their default name.

    Raises:
        ValueError: as `read_rows`.
    """
    default = Columns()
    if columns == default:
        return default
    tables = [path for path in paths if kind_of(path) in TABLES]
    rows = [row for path in tables for _, row in read_rows(path, header=columns.header)]
    if not columns.header and rows and default.text in rows[0].values():  # the first line is a header
        return default
    names = {name for row in rows for name in row}
    if len(tables) < len(paths):
        names |= set(filter(is_conll_column, (columns.tokens, columns.tags)))
    texts = {field: name for field, name in asdict(columns).items() if isinstance(name, str)}
    found: dict[str, Any] = {field: name for field, name in texts.items() if name in names}
    found |= {field: getattr(columns, field) for field in _NOT_NAMES}
    return Columns(**found | {"label_columns": columns.label_columns if names >= {*columns.label_columns} else ()})
