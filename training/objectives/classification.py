"""Classification: a label, or any number of labels, for a text or a pair of texts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from tasks import AnyTask
from tasks.base import TaskSettings
from tasks.classification import (
    MULTI_LABEL,
    Classification,
    ClassificationExample,
    ClassificationPrediction,
    ClassificationSettings,
    best_thresholds,
)
from tasks.features import Features
from training.data.cells import to_number
from training.data.columns import Columns
from training.data.examples import Examples
from training.data.plausibility import listed
from training.data.table_examples import read_classification, read_text_pairs
from training.loop.types import Batch
from training.objectives.base import (
    IGNORED,
    Baseline,
    LabelledFeatures,
    Targets,
    TaskOptions,
    all_label_names,
)
from training.objectives.baselines import majority_label
from training.objectives.classes import ClassObjective

MANY_LABELS = 50
"""Number of different labels above which numbers look like a regression."""
MIN_EXAMPLES = 10
"""Number of examples of a label below which its threshold and its score are chance."""
SEPARATORS = "|;,"
"""Usual separators of labels in one cell."""


class ClassificationObjective(ClassObjective):
    """Cross entropy of the label; in multi-label data, the mean of the labels' binary cross entropies."""

    baselines: ClassVar[Mapping[str, Baseline]] = {"majority label": majority_label}
    table_columns = (("text", "label"),)

    read = staticmethod(read_classification)

    @staticmethod
    def read_unlabelled(path: Path, columns: Columns) -> Examples:
        return read_text_pairs(path, columns).map(lambda texts: ClassificationExample(*texts))

    def settings(self, options: TaskOptions, examples: Sequence[ClassificationExample]) -> TaskSettings:
        labels = all_label_names(self, examples)
        given = () if options.thresholds == "auto" else options.thresholds
        if any(example.labels is not None for example in examples):
            thresholds = given * len(labels) if len(given) == 1 else given
            return ClassificationSettings(
                max_seq_length=options.max_seq_length, labels=labels, problem_type=MULTI_LABEL, thresholds=thresholds
            )
        if given:
            raise ValueError("--thresholds are for multi-label data, and these texts have one label each; leave it out")
        return ClassificationSettings(max_seq_length=options.max_seq_length, labels=labels)

    def label_names(self, example: ClassificationExample) -> Sequence[str]:
        return (example.label or "",) if example.labels is None else example.labels

    def mismatch(self, settings: TaskSettings, examples: Examples) -> str:
        assert isinstance(settings, ClassificationSettings)
        several = settings.is_multi_label
        for location, example in examples.located():
            if several and example.labels is None:
                return (
                    f"{location}: a single label, but the model is a multi-label one; write lists, or give "
                    "--columns.label-separator or --columns.label-columns"
                )
            if not several and example.labels is not None:
                return f"{location}: a list of labels, but the model predicts one label for each text"
        return ""

    def label_warning(self, labels: Sequence[str]) -> str:
        """Describe labels that are numbers, not classes (many different ones, or fractions), or several in one."""
        numbers = [to_number(label) for label in labels]
        is_odd = len(labels) > MANY_LABELS or any(number % 1 for number in numbers)
        if is_odd and all(map(math.isfinite, numbers)):
            return f"all {len(labels)} labels are numbers; if they measure something, use the task `regression`"
        for mark in SEPARATORS:
            joined = [label for label in labels if mark in label]
            if joined and len({part.strip() for label in labels for part in label.split(mark)}) < len(labels):
                return f"labels such as `{joined[0]}` look like several; if so, give --columns.label-separator '{mark}'"
        return ""

    def warnings(self, task: AnyTask, examples: Sequence[ClassificationExample]) -> list[str]:
        if not (task.settings.is_multi_label and examples):
            return []
        counts = Counter(name for example in examples for name in self.label_names(example))
        lines = []
        if all(len(self.label_names(example)) == 1 for example in examples):
            lines.append("every text has exactly one label; as strings, not lists, their scores would sum to 1")
        if everywhere := [name for name in task.settings.labels if counts[name] == len(examples)]:
            lines.append(f"every text has the label {listed(everywhere, counts)}")
        if rare := [name for name in task.settings.labels if counts[name] < MIN_EXAMPLES]:
            few = f"fewer than {MIN_EXAMPLES} examples, too few for a threshold or a score"
            lines.append(f"{len(rare)} of {len(task.settings.labels)} labels have {few}: {listed(rare, counts)}")
        return lines

    def label(
        self, task: AnyTask, example: ClassificationExample, features: Sequence[Features]
    ) -> list[LabelledFeatures]:
        if example.labels is None:
            return [LabelledFeatures(tuple(features), (task.settings.labels.index(example.label),))]
        chosen = {*example.labels}
        return [LabelledFeatures(tuple(features), tuple(float(name in chosen) for name in task.settings.labels))]

    def without_label(self, task: AnyTask, features: Sequence[Features]) -> list[LabelledFeatures]:
        labels = (math.nan,) * len(task.settings.labels) if task.settings.is_multi_label else (IGNORED,)
        return [LabelledFeatures(tuple(features), labels)]

    def targets(self, examples: Sequence[LabelledFeatures]) -> Targets:
        targets, counts = super().targets(examples)
        several = targets["labels"].is_floating_point()
        return targets, counts if several else {"loss": self.sum_weights(targets["labels"])}

    def loss(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        logits, labels = outputs["logits"].float(), batch.targets["labels"]
        several = labels.is_floating_point()
        return self.binary_cross_entropy(logits, labels) if several else self.cross_entropy(logits, labels[:, 0])

    def tuned(
        self, task: AnyTask, dev: Sequence[ClassificationExample], predictions: Sequence[ClassificationPrediction]
    ) -> tuple[AnyTask, Sequence[ClassificationPrediction]]:
        """Choose the threshold of each label, unless thresholds are given."""
        assert isinstance(task, Classification)
        if not task.settings.is_multi_label or task.settings.thresholds:
            return task, predictions
        thresholds = best_thresholds(dev, predictions, task.settings.labels)
        tuned = Classification(task.tokenizer, replace(task.settings, thresholds=thresholds))
        return tuned, [tuned.decide(prediction) for prediction in predictions]
