"""Protocol of all objectives: network, targets, losses, weights, result.

To add a task, subclass `TaskObjective` and add it to `training.objectives.registry` (see CONTRIBUTING).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from tasks import AnyTask
from tasks.base import TaskSettings
from tasks.embedding import EmbeddingSettings
from tasks.features import Features
from training.data.cells import to_number
from training.data.columns import Columns
from training.data.examples import Examples
from training.loop.distributed import World
from training.loop.gradients import JointLosses
from training.loop.types import Batch
from training.model.heads import BertModel
from training.model.vectors import embed

IGNORED = -100
"""Label of tokens without a loss."""

Baseline = Callable[[Sequence[Any], Sequence[Any]], dict[str, float]]
"""Baseline that needs no model: train and dev examples -> scores on dev, the main score first."""
Targets = tuple[dict[str, Tensor], dict[str, float]]
"""Target tensors by name, and the number of targets of each loss, or the sum of their weights."""


class Objective(ABC):
    """Objective of a training run."""

    weights: Mapping[str, float] = {}
    """Weights of losses in their sum; 1 for those not named."""

    def network(self, model: Any) -> Any:
        """Return the network to train, with the weights of a model."""
        return model

    @abstractmethod
    def targets(self, examples: Sequence[Any]) -> Targets:
        """Return the targets of a batch."""

    @abstractmethod
    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the losses of a batch by name, each summed over its targets."""

    def result(self, network: Any) -> Any:
        """Return the trained model of a network, without parts that only training needs."""
        return network


@dataclass(frozen=True, slots=True)
class LabelledFeatures:
    """Sequence with its labels; in multiple choice, all sequences of a question. Shuffled as a whole."""

    features: tuple[Features, ...]
    labels: tuple[int | float, ...]
    example: int = -1
    """Number of the example in its data; -1 if nothing is looked up by it."""

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return max(map(len, self.features))


def is_labelled(labels: Tensor) -> Tensor:
    """Return which examples have labels, [examples] bool; those of others are `IGNORED` or, if numbers, NaN.

    Args:
        labels: [examples, labels].
    """
    first = labels[:, 0]
    return ~first.isnan() if labels.is_floating_point() else first != IGNORED


class LabelledObjective(Objective):
    """Objective on labelled sequences, with the loss `loss`."""

    def targets(self, examples: Sequence[LabelledFeatures]) -> Targets:
        """Return `labels` [examples, labels], and a target for each example that has labels."""
        labels = torch.tensor([item.labels for item in examples])
        return {"labels": labels}, {"loss": int(is_labelled(labels).sum())}


class VectorObjective(LabelledObjective):
    """Objective that compares the vectors of texts.

    Args:
        settings: pooling of the vectors, and layers after it.
        dense: linear layers by their place in `settings.layers`, trained with the network.
        world: all processes; their texts are compared, too.
    """

    def __init__(self, settings: EmbeddingSettings, dense: nn.ModuleDict, world: World) -> None:
        self.settings = settings
        self.dense = dense
        self.world = world

    def vectors(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return the vectors of a batch, fp32 [sequences, size]."""
        hidden = network(**batch.inputs)["last_hidden_state"]
        return embed(hidden, batch.inputs["attention_mask"], self.settings, self.dense).float()

    @abstractmethod
    def vector_losses(self, vectors: Tensor, targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the losses of vectors by name, each summed over the targets."""

    @property
    def joint_losses(self) -> JointLosses:
        """Losses of all micro-batches together."""
        return JointLosses(self.vectors, self.vector_losses)

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return self.joint_losses(network, batch)


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Options of a recipe that the settings of a task are made of."""

    max_seq_length: int
    doc_stride: int
    max_query_length: int
    max_answer_length: int
    null_threshold: float | Literal["auto"]
    thresholds: tuple[float, ...] | Literal["auto"]
    has_dev: bool
    """True if there are dev data."""


class TaskObjective(LabelledObjective):
    """Objective of fine-tuning for a task."""

    default_max_seq_length: ClassVar[int] = 128
    """Longest sequence if the recipe names none, in tokens."""
    unusable_reason: ClassVar[str] = ""
    """Reason why examples are left out."""
    baselines: ClassVar[Mapping[str, Baseline]]
    """Baselines of the task by name."""
    read: Callable[[Path, Columns], Examples]
    """Function that reads the labelled examples of a file."""
    read_unlabelled: Callable[[Path, Columns], Examples]
    """Function that reads the examples of a file without their labels, which it need not have."""
    table_columns: ClassVar[Sequence[tuple[str, ...]]] = ()
    """Default columns of tables of the task, to recognise its files; alternatives."""

    @abstractmethod
    def settings(self, options: TaskOptions, examples: Sequence[Any]) -> TaskSettings:
        """Return the settings of the task."""

    def label_names(self, example: Any) -> Sequence[str]:
        """Return the labels of an example, as the settings name them."""
        return ()

    def is_usable(self, example: Any) -> bool:
        """Return whether an example can be trained on."""
        return True

    def unusable_hint(self, examples: Sequence[Any]) -> str:
        """Describe the likely cause why examples cannot be trained on; "" if it is unknown."""
        return ""

    def label_warning(self, labels: Sequence[str]) -> str:
        """Describe a set of labels that does not fit the task; "" if it does."""
        return ""

    def mismatch(self, settings: TaskSettings, examples: Examples) -> str:
        """Describe the first example that a model with these settings cannot be scored on; "" if there is none."""
        return ""

    def tuned(self, task: AnyTask, dev: Sequence[Any], predictions: Sequence[Any]) -> tuple[AnyTask, Sequence[Any]]:
        """Return the task with settings chosen on dev, and its predictions with them; by default both as they are."""
        return task, predictions

    def warnings(self, task: AnyTask, examples: Sequence[Any]) -> list[str]:
        """Return warnings about examples, a line each: labels that look wrong, or that cannot be predicted."""
        return []

    @abstractmethod
    def label(self, task: AnyTask, example: Any, features: Sequence[Any]) -> list[LabelledFeatures]:
        """Return the labelled sequences of an example."""

    def without_label(self, task: AnyTask, features: Sequence[Any]) -> list[LabelledFeatures]:
        """Return the sequences of an example without labels (see `is_labelled`)."""
        return [LabelledFeatures(tuple(features), (IGNORED,))]

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self.loss(network(**batch.inputs), batch)}

    @abstractmethod
    def loss(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Return the loss of a network's outputs, summed over the examples of a batch that have labels."""

    def evaluation_head(self, model: BertModel, task: AnyTask) -> AbstractContextManager[None]:
        """Return a context in which the network has the head for evaluation and saving, if that is another one."""
        return nullcontext()


def all_label_names(objective: TaskObjective, examples: Sequence[Any]) -> tuple[str, ...]:
    """Return the labels of some examples, sorted: whole numbers by value, others as texts."""
    names = sorted({name for example in examples for name in objective.label_names(example)})
    are_numbers = all(to_number(name) % 1 == 0 for name in names)
    return tuple(sorted(names, key=to_number) if are_numbers else names)


def find_unknown_label(objective: TaskObjective, examples: Examples, known: Sequence[str]) -> tuple[str, str] | None:
    """Return location and name of the first label that is not among the known ones; None if there is none."""
    names, located = set(known), examples.located()
    labels = ((location, name) for location, example in located for name in objective.label_names(example))
    return next((label for label in labels if label[1] not in names), None)
