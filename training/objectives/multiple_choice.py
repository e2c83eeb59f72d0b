"""Multiple choice: the right one of several answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks import AnyTask
from tasks.base import TaskSettings
from tasks.features import Features
from tasks.multiple_choice import MultipleChoiceExample, MultipleChoiceSettings
from training.data.table_examples import read_multiple_choice
from training.loop.types import Batch
from training.objectives.base import IGNORED, Baseline, LabelledFeatures, Targets, TaskObjective, TaskOptions
from training.objectives.baselines import majority_choice


class MultipleChoiceObjective(TaskObjective):
    """Cross entropy of the right choice among those of its question."""

    baselines: ClassVar[Mapping[str, Baseline]] = {"commonest choice": majority_choice}
    table_columns = (("choices", "label"), ("ending0", "label"))
    read = staticmethod(read_multiple_choice)
    read_unlabelled = staticmethod(partial(read_multiple_choice, labelled=False))

    def settings(self, options: TaskOptions, examples: Sequence[Any]) -> TaskSettings:
        return MultipleChoiceSettings(max_seq_length=options.max_seq_length)

    def label(
        self, task: AnyTask, example: MultipleChoiceExample, features: Sequence[Features]
    ) -> list[LabelledFeatures]:
        assert example.label is not None
        return [LabelledFeatures(tuple(features), (example.label,))]

    def targets(self, examples: Sequence[LabelledFeatures]) -> Targets:
        targets, counts = super().targets(examples)
        return targets | {"num_choices": torch.tensor([len(item.features) for item in examples])}, counts

    def loss(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        padded = choice_logits(outputs, batch)
        return F.cross_entropy(padded, batch.targets["labels"][:, 0], reduction="sum", ignore_index=IGNORED)


def choice_logits(outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
    """Return the logits of each question [questions, choices], minus infinity where it has fewer choices."""
    logits = outputs["logits"].float().split(batch.targets["num_choices"].tolist())
    return nn.utils.rnn.pad_sequence(logits, batch_first=True, padding_value=-torch.inf)
