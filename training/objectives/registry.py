"""Objectives and baselines of the tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks import AnyTask
from tasks.masked_lm import MaskedLM
from tasks.regression import Regression
from tasks.text.tokenizer import Tokenizer
from training.data.examples import Examples
from training.data.plausibility import visible
from training.objectives.base import TaskObjective, find_unknown_label
from training.objectives.baselines import unigram
from training.objectives.classification import ClassificationObjective
from training.objectives.multiple_choice import MultipleChoiceObjective
from training.objectives.regression import RegressionObjective
from training.objectives.similarity import word_overlap
from training.objectives.spans import SpanObjective
from training.objectives.tagging import TaggingObjective

OBJECTIVES: dict[str, TaskObjective] = {
    "classification": ClassificationObjective(),
    "spans": SpanObjective(),
    "regression": RegressionObjective(),
    "multiple-choice": MultipleChoiceObjective(),
    "tagging": TaggingObjective(),
}
"""Objective of each task that can be fine-tuned."""


def best_baseline(
    task: str, train: Sequence[Any], dev: Sequence[Any], tokenizer: Tokenizer
) -> tuple[str, dict[str, float]]:
    """Return name and dev scores of the best baseline of a task, fitted on train; the first score decides."""
    if task == MaskedLM.name:
        return "unigram", unigram(train, dev, tokenizer)
    found = [(name, scores_of(train, dev)) for name, scores_of in OBJECTIVES[task].baselines.items()]
    if task == Regression.name:
        found.append(("word overlap", word_overlap(dev, tokenizer)))
    return max(found, key=lambda item: list(item[1].values()))


def check_labels(task: AnyTask, examples: Examples) -> None:
    """Check that the task has all labels of the data; if not, this is another data set or column.

    Raises:
        ValueError: naming the first unknown label and its location.
    """
    labels = getattr(task.settings, "labels", ())
    if labels and (unknown := find_unknown_label(OBJECTIVES[task.name], examples, labels)):
        location, label = unknown
        raise ValueError(f"{location}: label `{visible(label)}` is none of the checkpoint's: {', '.join(labels)}")


def check_kind(task: AnyTask, examples: Examples) -> None:
    """Check that the task can be scored on the data.

    Raises:
        ValueError: naming the first example that does not fit, and its location.
    """
    if task.name in OBJECTIVES and (problem := OBJECTIVES[task.name].mismatch(task.settings, examples)):
        raise ValueError(problem)
