"""Hints at the task that reads a file, for messages about a file that another task cannot read."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from training.data.tables import TABLES, kind_of, read_rows
from training.text.documents import read_lines

_TAGGED = re.compile(r"\S+[ \t](?:.*[ \t])?(?:O|[BIESMLUW](?:-\S+)?)\s*")
"""A line of CoNLL."""
_TABLES = {
    ("tokens", "tags"): ["tagging"],
    ("question", "context", "answers"): ["spans"],
    ("choices", "label"): ["multiple-choice"],
    ("ending0", "label"): ["multiple-choice"],
    ("text", "label"): ["classification", "regression"],
}
"""Default names of columns -> tasks."""


def other_task(path: Path, task: str) -> str:
    """Return the end of a message: the format of a file and the task that reads it.

    Returns:
        An empty string if the format is unknown, or `task` itself reads it.
    """
    try:
        name, tasks = _recognize(path)
    except ValueError:  # missing, or not even lines of text
        return ""
    if task in tasks or not tasks:
        return ""
    return f"; this looks like {name}, which the task `{tasks[0]}` reads"


def _recognize(path: Path) -> tuple[str, list[str]]:
    """Return the name of a file's format, by its start, and the tasks that read it."""
    if kind_of(path) in TABLES:
        names = next(read_rows(path), ("", {}))[1].keys()
        columns = next((columns for columns in _TABLES if names >= {*columns}), ())
        return f"a table of {', '.join(f'`{name}`' for name in columns)}", _TABLES.get(columns, [])
    lines = [line[:1000] for line in itertools.islice(read_lines(path), 100)]
    words = [line for line in lines if line.strip() and not line.startswith(("-DOCSTART-", "#"))]
    if words and all(map(_TAGGED.fullmatch, words)):
        return "CoNLL", ["tagging"]
    return "SQuAD's JSON", ["spans"] if '"paragraphs"' in "".join(lines) else []
