"""Description of labelled data, with warnings and notes, so that a user notices a wrong column or file."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tasks import AnyTask
from training.data.examples import Examples
from training.objectives.registry import OBJECTIVES

MAX_COUNTED = 40
"""Most labels whose numbers of examples are shown."""


def describe_examples(task: AnyTask, examples: Examples) -> str:
    """Return the number of examples, whether they are pairs, and the labels of the task."""
    pairs = pair_flags(examples)
    some = f", {sum(pairs):,} of them with a pair" if any(pairs) else ""
    kind = "" if not pairs else ": pairs of texts" if all(pairs) else f": texts{some}"
    labels = getattr(task.settings, "labels", ())
    if getattr(task.settings, "is_multi_label", False):
        return f"{len(examples):,} examples{kind}; {_label_counts(task, examples)}"
    names = f"; {len(labels)} labels ({', '.join(labels[:8])}{', …' if len(labels) > 8 else ''})" if labels else ""
    return f"{len(examples):,} examples{kind}{names}"


def _label_counts(task: AnyTask, examples: Examples) -> str:
    """Return the number of examples of each label, and of those without any; the commonest first."""
    names = [OBJECTIVES[task.name].label_names(example) for example in examples]
    counts = Counter(dict.fromkeys(task.settings.labels, 0) | Counter(name for item in names for name in item))
    listed = ", ".join(f"{name} {count:,}" for name, count in counts.most_common(MAX_COUNTED))
    more = ", …" if len(counts) > MAX_COUNTED else ""
    return f"any number of {len(counts)} labels ({listed}{more}; none {sum(not item for item in names):,})"


def warn_of_labels(task: AnyTask, examples: Mapping[str, Examples]) -> None:
    """Print the warnings of the task's objective about label names and examples, by name of the data."""
    objective = OBJECTIVES[task.name]
    if warning := objective.label_warning(getattr(task.settings, "labels", ())):
        print(f"warning: {warning}", file=sys.stderr)
    for name, some in examples.items():
        for line in objective.warnings(task, some):
            print(f"warning: {name} data: {line}", file=sys.stderr)


def note_overlap(train: Examples, dev: Examples) -> None:
    """Print a note if dev examples are in the training data; labels and ids may differ."""
    trained = {_input_of(example) for example in train}
    if count := sum(_input_of(example) in trained for example in dev):
        print(f"note: {count:,} of {len(dev):,} dev examples are in the training data, too", flush=True)


def _input_of(example: Any) -> Any:
    """Return an example without its label and id."""
    unread = {"id": "", "label": None, "labels": None, "tags": (), "answers": (), "answer_start": -1}
    return replace(example, **{name: value for name, value in unread.items() if hasattr(example, name)})


def pair_flags(examples: Examples) -> list[bool]:
    """Return for each example whether it is a pair of texts; an empty list for tasks without pairs."""
    return [bool(example.text_pair) for example in examples if hasattr(example, "text_pair")]


def are_all_pairs(examples: Examples) -> bool:
    """Return whether all examples are pairs of texts."""
    pairs = pair_flags(examples)
    return bool(pairs) and all(pairs)
