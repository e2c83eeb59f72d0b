"""Classification: a label for a text or a pair of texts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from tasks import AnyTask
from tasks.base import TaskSettings
from tasks.classification import ClassificationExample, ClassificationSettings
from tasks.features import Features
from training.baselines import majority_label
from training.data.cells import to_number
from training.data.columns import Columns
from training.data.examples import Examples
from training.data.table_examples import read_classification
from training.loop.types import Batch
from training.objectives.base import Baseline, LabelledFeatures, TaskObjective, TaskOptions, all_label_names

MANY_LABELS = 50
"""Number of different labels above which numbers look like a regression."""


class ClassificationObjective(TaskObjective):
    """Cross entropy of the label."""

    baselines: ClassVar[Mapping[str, Baseline]] = {"majority label": majority_label}
    table_columns = (("text", "label"),)

    def read(self, path: Path, columns: Columns) -> Examples:
        return read_classification(path, columns)

    def settings(self, options: TaskOptions, examples: Sequence[Any]) -> TaskSettings:
        return ClassificationSettings(max_seq_length=options.max_seq_length, labels=all_label_names(self, examples))

    def label_names(self, example: ClassificationExample) -> Sequence[str]:
        return (example.label or "",)

    def label_warning(self, labels: Sequence[str]) -> str:
        """Describe labels that are numbers, not classes: many different ones, or fractions."""
        numbers = [to_number(label) for label in labels]
        is_odd = len(labels) > MANY_LABELS or any(number % 1 for number in numbers)
        if is_odd and all(map(math.isfinite, numbers)):
            return f"all {len(labels)} labels are numbers; if they measure something, use the task `regression`"
        return ""

    def label(
        self, task: AnyTask, example: ClassificationExample, features: Sequence[Features]
    ) -> list[LabelledFeatures]:
        return [LabelledFeatures(tuple(features), (task.settings.labels.index(example.label),))]

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        logits = network(**batch.inputs)["logits"].float()
        return {"loss": F.cross_entropy(logits, batch.targets["labels"][:, 0], reduction="sum")}
