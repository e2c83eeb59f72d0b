"""Labelled examples of any task, from files or data sets of the Hugging Face hub."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from tasks.classification import Classification
from tasks.regression import Regression, RegressionSettings
from tasks.text.tokenizer import Tokenizer
from training.data.cloze import MAX_PASSAGE_TOKENS, read_cloze
from training.data.columns import Columns
from training.data.conll import is_conll_column
from training.data.examples import Examples, encode_examples
from training.data.table_examples import check_labels, read_regression
from training.data.tables import TABLES, WITH_LISTS, kind_of, read_rows
from training.objectives.registry import OBJECTIVES
from training.text.documents import read_lines, suffix_of

_TAGGED = re.compile(r"\S+[ \t](?:.*[ \t])?(?:O|[BIESMLUW](?:-\S+)?)\s*")
"""A line of CoNLL."""


def read_examples(
    task: str,
    paths: Sequence[Path],
    *,
    columns: Columns,
    tokenizer: Tokenizer,
    max_passage_tokens: int = MAX_PASSAGE_TOKENS,
) -> Examples:
    """Read the examples of a task.

    Args:
        max_passage_tokens: longest passage of running text, for masked-lm.

    Raises:
        ValueError: naming file, line and column of a missing or malformed value, and the task that reads such files if
            it is another one; or if there are no examples.
    """
    if task in OBJECTIVES:
        _check_columns(task, paths, columns)
        examples = _read_all(paths, lambda path: _read(task, path, columns))
        if task == Classification.name:
            check_labels(examples)
        return examples
    if task != "masked-lm":
        raise ValueError(f"task `{task}` has no labelled data")
    if table := next((path for path in paths if suffix_of(path) in (".tsv", ".csv", ".json")), None):
        raise ValueError(f"`{table}` is a table, but a masked-lm checkpoint is evaluated on running text")

    def passages(path: Path) -> Examples:
        found = read_cloze(path, tokenizer, max_tokens=max_passage_tokens)
        return Examples((f"`{path}`", example) for example in found)

    return _read_all(paths, passages)


def _check_columns(task: str, paths: Sequence[Path], columns: Columns) -> None:
    """Raise if columns are named, but no file has columns, or the task reads no lists of labels."""
    if columns.label_separator or columns.label_columns:
        if task != Classification.name:
            raise ValueError(f"label_separator and label_columns are for classification, not `{task}`; leave them out")
        if columns.label_separator and columns.label_columns:
            raise ValueError("label_separator and label_columns conflict; give one of them")
    kinds = WITH_LISTS if task in ("spans", "tagging") else TABLES
    names = [name for name in columns.custom if task != "tagging" or not is_conll_column(name)]
    if names and not any(kind_of(path) in kinds for path in paths):
        raise ValueError(f"`{paths[0]}` is not a table, so it has no column `{names[0]}`; leave out --columns")


def _read(task: str, path: Path, columns: Columns) -> Examples:
    try:
        return OBJECTIVES[task].read(path, columns)
    except ValueError as error:
        try:
            name, tasks = _recognize(path)
        except ValueError:  # missing, or not even lines of text
            raise error from None
        if not tasks or task in tasks:
            raise
        raise ValueError(f"{error}; this looks like {name}, which the task `{tasks[0]}` reads") from error


def _recognize(path: Path) -> tuple[str, list[str]]:
    """Return the name of a file's format, by its start, and the tasks that read it."""
    if kind_of(path) in TABLES:
        names = next(read_rows(path), ("", {}))[1].keys()
        known = dict.fromkeys(item for objective in OBJECTIVES.values() for item in objective.table_columns)
        # general columns (`text`, `label`) last
        columns = next((columns for columns in reversed(known) if names >= {*columns}), ())
        tasks = [name for name, objective in OBJECTIVES.items() if columns in objective.table_columns]
        return f"a table of {', '.join(f'`{name}`' for name in columns)}", tasks
    lines = [line[:1000] for line in itertools.islice(read_lines(path), 100)]
    words = [line for line in lines if line.strip() and not line.startswith(("-DOCSTART-", "#"))]
    if words and all(map(_TAGGED.fullmatch, words)):
        return "CoNLL", ["tagging"]
    return "SQuAD's JSON", ["spans"] if '"paragraphs"' in "".join(lines) else []


def read_similarities(paths: Sequence[Path], *, columns: Columns, tokenizer: Tokenizer) -> Examples:
    """Read pairs of texts with a similarity, as examples of regression.

    Raises:
        ValueError: as `read_examples`; also for a text without a pair, or without tokens.
    """
    pairs = _read_all(paths, lambda path: read_regression(path, columns, need_pairs=True))
    encode_examples(Regression(tokenizer, RegressionSettings()), pairs)
    return pairs


def _read_all(paths: Sequence[Path], read: Callable[[Path], Examples]) -> Examples:
    examples = Examples()
    for path in paths:
        examples.join(read(path))
    if not examples:
        raise ValueError(f"no examples in {', '.join(f'`{path}`' for path in paths)}")
    return examples
