"""Regression: a number for a text or a pair of texts."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks import AnyTask
from tasks.base import TaskSettings
from tasks.features import Features
from tasks.regression import RegressionExample, RegressionSettings
from training.data.columns import Columns
from training.data.examples import Examples
from training.data.table_examples import read_regression, read_text_pairs
from training.loop.types import Batch
from training.model.heads import BertForSequenceRegression, BertModel
from training.objectives.base import Baseline, LabelledFeatures, TaskObjective, TaskOptions, is_labelled
from training.objectives.baselines import mean_label


class RegressionObjective(TaskObjective):
    """Squared error of labels, standardised by mean and deviation of the training data."""

    baselines: ClassVar[Mapping[str, Baseline]] = {"mean label": mean_label}
    table_columns = (("text", "label"),)

    read = staticmethod(read_regression)

    @staticmethod
    def read_unlabelled(path: Path, columns: Columns) -> Examples:
        return read_text_pairs(path, columns).map(lambda texts: RegressionExample(*texts))

    def settings(self, options: TaskOptions, examples: Sequence[Any]) -> TaskSettings:
        labels = np.array([example.label or 0 for example in examples], dtype=np.float64)
        is_constant = not np.ptp(labels)
        return RegressionSettings(
            max_seq_length=options.max_seq_length,
            label_mean=float(labels[0] if is_constant else labels.mean()),
            label_deviation=1.0 if is_constant else float(labels.std()),
        )

    def label(self, task: AnyTask, example: RegressionExample, features: Sequence[Features]) -> list[LabelledFeatures]:
        label = (float(example.label or 0) - task.settings.label_mean) / task.settings.label_deviation
        return [LabelledFeatures(tuple(features), (label,))]

    @contextmanager
    def evaluation_head(self, model: BertModel, task: AnyTask) -> Iterator[None]:
        assert isinstance(model, BertForSequenceRegression)
        own = model.classifier
        model.classifier = _scaled(own, task.settings.label_deviation, task.settings.label_mean)
        try:
            yield
        finally:
            model.classifier = own

    def without_label(self, task: AnyTask, features: Sequence[Features]) -> list[LabelledFeatures]:
        return [LabelledFeatures(tuple(features), (math.nan,))]

    def loss(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        labels = batch.targets["labels"]
        known = is_labelled(labels)
        return F.mse_loss(outputs["logits"].float()[known], labels[known], reduction="sum")


def standardise_head(model: BertForSequenceRegression, settings: RegressionSettings) -> None:
    """Change a trained head, whose outputs have the labels' unit, to standardised outputs."""
    deviation = settings.label_deviation
    model.classifier = _scaled(model.classifier, 1 / deviation, -settings.label_mean / deviation)


def _scaled(layer: nn.Linear, scale: float, shift: float) -> nn.Linear:
    """Return a copy of a linear layer whose outputs are scaled, then shifted."""
    found = copy.deepcopy(layer)
    with torch.no_grad():
        found.weight.copy_(layer.weight.double() * scale)
        found.bias.copy_(layer.bias.double() * scale + shift)
    return found
