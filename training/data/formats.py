"""What a file looks like that a task cannot read, and which task does read such files."""

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
"""Columns, by their usual names -> tasks."""


def other_task(path: Path, task: str) -> str:
    """The end of a message about a file that a task cannot read.

    Returns:
        What the file looks like and which task reads it; empty where that is this one, or not known.
    """
    try:
        looks, tasks = _look(path)
    except ValueError:  # there is no such file, or not even its lines can be read
        return ""
    if task in tasks or not tasks:
        return ""
    return f"; this looks like {looks}, which the task `{tasks[0]}` reads"


def _look(path: Path) -> tuple[str, list[str]]:
    """What a file looks like by its start, and the tasks that read it."""
    if kind_of(path) in TABLES:
        there = next(read_rows(path), ("", {}))[1].keys()
        columns = next((columns for columns in _TABLES if there >= {*columns}), ())
        return f"a table of {', '.join(f'`{name}`' for name in columns)}", _TABLES.get(columns, [])
    lines = [line[:1000] for line in itertools.islice(read_lines(path), 100)]
    words = [line for line in lines if line.strip() and not line.startswith(("-DOCSTART-", "#"))]
    if words and all(map(_TAGGED.fullmatch, words)):
        return "CoNLL", ["tagging"]
    return "SQuAD's JSON", ["spans"] if '"paragraphs"' in "".join(lines) else []
