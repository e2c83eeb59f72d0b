"""Multiple choice: the right one of several answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks import AnyTask
from tasks.base import TaskSettings
from tasks.features import Features
from tasks.multiple_choice import MultipleChoiceExample, MultipleChoiceSettings
from training.baselines import majority_choice
from training.data.columns import Columns
from training.data.examples import Examples
from training.data.table_examples import read_multiple_choice
from training.loop.types import Batch
from training.objectives.base import Baseline, LabelledFeatures, Targets, TaskObjective, TaskOptions


class MultipleChoiceObjective(TaskObjective):
    """Cross entropy of the right choice among those of its question."""

    baselines: ClassVar[Mapping[str, Baseline]] = {"commonest choice": majority_choice}
    table_columns = (("choices", "label"), ("ending0", "label"))

    def read(self, path: Path, columns: Columns) -> Examples:
        return read_multiple_choice(path, columns)

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

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        logits = network(**batch.inputs)["logits"].float().split(batch.targets["num_choices"].tolist())
        padded = nn.utils.rnn.pad_sequence(logits, batch_first=True, padding_value=-torch.inf)
        return {"loss": F.cross_entropy(padded, batch.targets["labels"][:, 0], reduction="sum")}
