"""Objectives and baselines of the tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.masked_lm import MaskedLM
from tasks.regression import Regression
from tasks.tokenizer import Tokenizer
from training.baselines import unigram
from training.objectives.base import TaskObjective
from training.objectives.classification import ClassificationObjective
from training.objectives.multiple_choice import MultipleChoiceObjective
from training.objectives.regression import RegressionObjective
from training.objectives.spans import SpanObjective
from training.objectives.tagging import TaggingObjective
from training.similarity import word_overlap

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
