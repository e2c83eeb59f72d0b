"""Objectives of tasks with labels: weights of the classes and smoothing of the labels in their losses."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from tasks import AnyTask
from tasks.text.json_files import read_json
from training.objectives.base import IGNORED, TaskObjective, is_labelled

MAX_LISTED = 8
"""Most labels that a message lists."""


class ClassObjective(TaskObjective):
    """Objective of a task that gives each target a label, or any number of labels."""

    class_weights: Tensor | None = None
    """Weight of each label in the loss [labels] float32, in the order of the settings; None for equal ones."""
    label_smoothing: float = 0.0
    """Fraction of each target that is spread evenly over all labels (Szegedy et al. 2016, section 7)."""

    def weighted(self, weights: Mapping[str, float], label_smoothing: float) -> Self:
        """Return an objective whose loss weighs classes and smooths labels.

        Args:
            weights: weight of each label, in the order of the task's settings; none for equal ones.
        """
        found = copy.copy(self)
        found.class_weights = torch.tensor([*weights.values()]) if weights else None
        found.label_smoothing = label_smoothing
        return found

    def sum_weights(self, labels: Tensor) -> float:
        """Return the sum of the weights of class numbers that are not `IGNORED`: without weights, their number."""
        known = labels[labels != IGNORED]
        return len(known) if self.class_weights is None else float(self.class_weights.double()[known].sum())

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the cross entropy, summed over the labels that are not `IGNORED`.

        Divided by `sum_weights` it is that of `torch.nn.CrossEntropyLoss` with the same weights and smoothing.

        Args:
            logits: [targets, labels].
            labels: class numbers [targets] int64.
        """
        return F.cross_entropy(
            logits,
            labels,
            weight=self._weights_on(logits.device),
            label_smoothing=self.label_smoothing,
            ignore_index=IGNORED,
            reduction="sum",
        )

    def binary_cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the binary cross entropy, averaged over labels and summed over examples that have labels.

        Weights are those of the examples that have a label, against 1 of those without, as `pos_weight` of
        `torch.nn.BCEWithLogitsLoss`. Smoothing moves targets towards a half.

        Args:
            logits: [examples, labels].
            labels: [examples, labels] 0.0 or 1.0; NaN in examples without labels.
        """
        known = is_labelled(labels)
        targets = labels[known] * (1 - self.label_smoothing) + self.label_smoothing / 2
        pos_weight = self._weights_on(logits.device)
        losses = F.binary_cross_entropy_with_logits(logits[known], targets, pos_weight=pos_weight, reduction="sum")
        return losses / labels.shape[1]

    def _weights_on(self, device: torch.device) -> Tensor | None:
        return None if self.class_weights is None else self.class_weights.to(device, non_blocking=True)


def class_weights(
    objective: TaskObjective, task: AnyTask, examples: Sequence[Any], how: Literal["balanced"] | Path
) -> dict[str, float]:
    """Return the weight of each label of a task.

    Args:
        how: `balanced` for weights that give all labels the same sum over the examples, as scikit-learn's; for
            multi-label data, those that give examples with and without a label the same sum, 1 for a label that all
            examples have. Or a JSON file with the weight of each label.

    Raises:
        ValueError: naming the file and the label that is unknown, missing, or has no positive number.
    """
    labels = task.settings.labels
    if isinstance(how, Path):
        return _read_weights(how, labels)
    counts = Counter(name for example in examples for name in objective.label_names(example))
    if getattr(task.settings, "is_multi_label", False):
        return {label: (len(examples) - counts[label]) / counts[label] or 1.0 for label in labels}
    return {label: counts.total() / (len(labels) * counts[label]) for label in labels}


def _read_weights(path: Path, labels: Sequence[str]) -> dict[str, float]:
    values = read_json(path)
    expected = 'it must be like {"spam": 5, "ham": 0.5}, with each label of the training data'
    for label in [*values, *labels]:
        if label not in labels or label not in values:
            problem = "is no label of the training data" if label in values else "has no weight"
            raise ValueError(f"`{path}`: label `{label}` {problem}; {expected}")
        value = values[label]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ValueError(f"`{path}`: the weight of `{label}` must be a number above 0: `{value}`")
    return {label: float(values[label]) for label in labels}


def describe_weights(weights: Mapping[str, float]) -> str:
    """Return weights for people: all, or the first ones."""
    more = ", …" if len(weights) > MAX_LISTED else ""
    return ", ".join(f"{label} {weight:.3g}" for label, weight in [*weights.items()][:MAX_LISTED]) + more
