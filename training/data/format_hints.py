"""Hints at the task that reads a file, for messages about a file that another task cannot read."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path

from training.data.tables import TABLES, kind_of, read_rows
from training.text.documents import read_lines

_TAGGED = re.compile(r"\S+[ \t](?:.*[ \t])?(?:O|[BIESMLUW](?:-\S+)?)\s*")
"""A line of CoNLL."""
TableColumns = Mapping[tuple[str, ...], list[str]]
"""Names of columns -> tasks that read them."""


def other_task(path: Path, task: str, table_columns: TableColumns) -> str:
    """Return the end of a message: the format of a file and the task that reads it.

    Returns:
        An empty string if the format is unknown, or `task` itself reads it.
    """
    try:
        name, tasks = _recognize(path, table_columns)
    except ValueError:  # missing, or not even lines of text
        return ""
    if task in tasks or not tasks:
        return ""
    return f"; this looks like {name}, which the task `{tasks[0]}` reads"


def _recognize(path: Path, table_columns: TableColumns) -> tuple[str, list[str]]:
    """Return the name of a file's format, by its start, and the tasks that read it."""
    if kind_of(path) in TABLES:
        names = next(read_rows(path), ("", {}))[1].keys()
        columns = next((columns for columns in table_columns if names >= {*columns}), ())
        return f"a table of {', '.join(f'`{name}`' for name in columns)}", table_columns.get(columns, [])
    lines = [line[:1000] for line in itertools.islice(read_lines(path), 100)]
    words = [line for line in lines if line.strip() and not line.startswith(("-DOCSTART-", "#"))]
    if words and all(map(_TAGGED.fullmatch, words)):
        return "CoNLL", ["tagging"]
    return "SQuAD's JSON", ["spans"] if '"paragraphs"' in "".join(lines) else []
