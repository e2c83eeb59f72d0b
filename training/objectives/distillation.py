"""Distillation of tasks: the student learns the probabilities that teachers give, and labels (Hinton et al. 2015).

A teacher may have another tokenizer: its outputs are kept for each text, word or character span, and the targets of a
student's sequence are made from that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks import AnyTask
from tasks.base import Outputs
from tasks.classification import sigmoid, softmax
from training.loop.types import Batch
from training.objectives.base import LabelledFeatures, LabelledObjective, Targets, TaskObjective
from training.objectives.multiple_choice import choice_logits
from training.objectives.spans import boundary_logits

Rows = np.ndarray
"""Outputs of one teacher for one example, [rows, width] float32."""
OutputsOf = Callable[[int], Sequence[Rows]]
"""Function from the number of an example to the rows of each teacher."""
LABEL_LOSS, TEACHER_LOSS = "label_loss", "teacher_loss"


class Matching(ABC):
    """Kind of outputs that a student learns; one for each task.

    Args:
        task: task of the student.
        temperature: divides logits before the softmax, so that the smaller probabilities count more.
    """

    def __init__(self, task: AnyTask, temperature: float) -> None:
        self.task = task
        self.temperature = temperature

    @staticmethod
    @abstractmethod
    def rows(example: Any, features: Sequence[Any], outputs: Sequence[Outputs]) -> Rows:
        """Return a teacher's outputs for an example, in units that do not depend on its tokenizer.

        Args:
            example: with words, if the task has words.
            features: the teacher's features of the example.
            outputs: the teacher's outputs for each of the features.
        """

    @abstractmethod
    def target(self, teachers: Sequence[Rows], item: LabelledFeatures) -> np.ndarray:
        """Return the target of an item [length of the target, ...], the mean of the teachers."""

    def count(self, items: Sequence[LabelledFeatures]) -> int:
        """Return the number of targets in some items."""
        return len(items)

    @abstractmethod
    def loss(self, outputs: Mapping[str, Tensor], targets: Tensor, batch: Batch) -> Tensor:
        """Return the loss, summed over the targets of a batch.

        Args:
            outputs: outputs of the student.
            targets: [items, longest target, ...], with zeros behind shorter ones.
            batch: batch of the outputs.
        """

    def _probabilities(self, teachers: Sequence[np.ndarray]) -> np.ndarray:
        """Return the mean of the teachers' softmax over the last axis."""
        found = [softmax(logits / self.temperature) for logits in teachers]
        return np.asarray(np.mean(found, axis=0), np.float32)

    def _divergence(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the Kullback-Leibler divergence from targets, times temperature squared, summed.

        The factor keeps the size of gradients when the temperature changes (Hinton et al. 2015, section 2).

        Args:
            logits: [..., classes], minus infinity where there is no class.
            targets: the same shape; all zeros where there is no target.
        """
        predicted = F.log_softmax(logits / self.temperature, dim=-1).masked_fill(targets == 0, 0.0)
        return (torch.xlogy(targets, targets) - targets * predicted).sum() * self.temperature**2


class ClassMatching(Matching):
    """Probabilities of labels: one softmax or, for multi-label models, a sigmoid for each."""

    @staticmethod
    def rows(example: Any, features: Sequence[Any], outputs: Sequence[Outputs]) -> Rows:
        return outputs[0]["logits"][None]

    def target(self, teachers: Sequence[Rows], item: LabelledFeatures) -> np.ndarray:
        logits = [rows[0] for rows in teachers]
        if not self.task.settings.is_multi_label:
            return self._probabilities(logits)
        return np.asarray(np.mean([sigmoid(row / self.temperature) for row in logits], axis=0), np.float32)

    def loss(self, outputs: Mapping[str, Tensor], targets: Tensor, batch: Batch) -> Tensor:
        logits = outputs["logits"].float()
        if not self.task.settings.is_multi_label:
            return self._divergence(logits, targets)
        scaled = logits / self.temperature
        losses = F.binary_cross_entropy_with_logits(scaled, targets, reduction="sum")
        entropy = -(torch.xlogy(targets, targets) + torch.xlogy(1 - targets, 1 - targets)).sum()
        return (losses - entropy) * self.temperature**2 / targets.shape[1]


class NumberMatching(Matching):
    """Numbers of a regression or a cross-encoder, standardised as the student's labels."""

    @staticmethod
    def rows(example: Any, features: Sequence[Any], outputs: Sequence[Outputs]) -> Rows:
        return outputs[0]["logits"].reshape(1, 1)

    def target(self, teachers: Sequence[Rows], item: LabelledFeatures) -> np.ndarray:
        settings = self.task.settings
        found: np.ndarray = (np.mean(teachers, axis=0)[0] - settings.label_mean) / settings.label_deviation
        return found.astype(np.float32)

    def loss(self, outputs: Mapping[str, Tensor], targets: Tensor, batch: Batch) -> Tensor:
        return F.mse_loss(outputs["logits"].float(), targets, reduction="sum")


class ChoiceMatching(Matching):
    """Probabilities of the choices of a question."""

    @staticmethod
    def rows(example: Any, features: Sequence[Any], outputs: Sequence[Outputs]) -> Rows:
        return np.array([output["logits"] for output in outputs], np.float32).reshape(-1, 1)

    def target(self, teachers: Sequence[Rows], item: LabelledFeatures) -> np.ndarray:
        return self._probabilities([rows[:, 0] for rows in teachers])

    def loss(self, outputs: Mapping[str, Tensor], targets: Tensor, batch: Batch) -> Tensor:
        return self._divergence(choice_logits(outputs, batch), targets)


class TagMatching(Matching):
    """Probabilities of the tags of each word."""

    @staticmethod
    def rows(example: Any, features: Sequence[Any], outputs: Sequence[Outputs]) -> Rows:
        found = np.zeros((len(example.words), outputs[0]["logits"].shape[-1]), np.float32)
        for window, output in zip(features, outputs, strict=True):
            words, positions = window.tagged_words
            found[words] = output["logits"][positions]
        return found

    def target(self, teachers: Sequence[Rows], item: LabelledFeatures) -> np.ndarray:
        window: Any = item.features[0]
        words, positions = window.tagged_words
        found = np.zeros((len(window), teachers[0].shape[1]), np.float32)
        found[positions] = self._probabilities([rows[words] for rows in teachers])
        return found

    def count(self, items: Sequence[LabelledFeatures]) -> int:
        windows: list[Any] = [item.features[0] for item in items]
        return sum(len(window.tagged_words[0]) for window in windows)

    def loss(self, outputs: Mapping[str, Tensor], targets: Tensor, batch: Batch) -> Tensor:
        return self._divergence(outputs["logits"].float()[:, : targets.shape[1]], targets)


class SpanMatching(Matching):
    """Probabilities of the characters at which an answer starts and ends, and of "no answer"."""

    @staticmethod
    def rows(example: Any, features: Sequence[Any], outputs: Sequence[Outputs]) -> Rows:
        """Return rows of first character, last character, start logit and end logit, a token each.

        The first row is "not in this text", with -1 as characters. Each token counts in the window in which it has most
        context; tokens without characters do not count.
        """
        null = min(outputs, key=lambda output: float(output["start_logits"][0] + output["end_logits"][0]))
        found = [np.array([[-1, -1, null["start_logits"][0], null["end_logits"][0]]], np.float32)]
        for window, output in zip(features, outputs, strict=True):
            own = window.has_max_context & (window.offsets[:, 1] > window.offsets[:, 0])
            offsets = window.offsets[own] - [0, 1]
            logits = [output[name][own] for name in ("start_logits", "end_logits")]
            found.append(np.column_stack([offsets, *logits]).astype(np.float32))
        return np.concatenate(found)

    def target(self, teachers: Sequence[Rows], item: LabelledFeatures) -> np.ndarray:
        """Return the probabilities of tokens as start and as end, [length, 2]; the first token is "not here"."""
        window: Any = item.features[0]
        found = np.zeros((len(window), 2), np.float32)
        for rows in teachers:
            for column, (characters, logits) in enumerate(zip(rows.T[:2], rows.T[2:], strict=True)):
                tokens = _tokens_at(characters, window, first=column == 0)
                np.add.at(found[:, column], tokens, softmax(logits / self.temperature) / len(teachers))
        return found

    def loss(self, outputs: Mapping[str, Tensor], targets: Tensor, batch: Batch) -> Tensor:
        logits = [item[:, : targets.shape[1]] for item in boundary_logits(outputs, batch)]
        losses = [self._divergence(item, target) for item, target in zip(logits, targets.unbind(-1), strict=True)]
        return torch.stack(losses).mean()


def _tokens_at(characters: np.ndarray, window: Any, *, first: bool) -> np.ndarray:
    """Return the token of a window that holds each character; 0, "not here", for characters outside of it.

    Args:
        first: take the first token of a character that is in several, as `answer_positions` does for a start; else the
            last.
    """
    inside = np.flatnonzero(window.in_context & (window.offsets[:, 1] > window.offsets[:, 0]))
    starts, ends = window.offsets[inside].T
    nearest = np.searchsorted(ends, characters, "right") if first else np.searchsorted(starts, characters, "right") - 1
    nearest = nearest.clip(0, len(inside) - 1)
    holds = (starts[nearest] <= characters) & (characters < ends[nearest])
    return np.where(holds, inside[nearest], 0)


MATCHINGS: dict[str, type[Matching]] = {
    "classification": ClassMatching,
    "regression": NumberMatching,
    "multiple-choice": ChoiceMatching,
    "tagging": TagMatching,
    "spans": SpanMatching,
}
"""Outputs to learn, by task."""


class TaskDistillation(LabelledObjective):
    """Loss of the labels, and divergence from the teachers' probabilities.

    Args:
        objective: objective of the labels.
        matching: outputs to learn.
        outputs_of: outputs of the teachers for each example.
        alpha: weight of the loss of labels, 0 to 1; that of the teachers has the rest.
    """

    def __init__(self, objective: TaskObjective, matching: Matching, outputs_of: OutputsOf, *, alpha: float) -> None:
        self.objective = objective
        self.matching = matching
        self.outputs_of = outputs_of
        self.weights = {LABEL_LOSS: alpha, TEACHER_LOSS: 1 - alpha}

    def targets(self, examples: Sequence[LabelledFeatures]) -> Targets:
        """Return the targets of the labels, and `teacher`, [items, longest target, ...]."""
        targets, counts = self.objective.targets(examples)
        found = [torch.from_numpy(self.matching.target(self.outputs_of(item.example), item)) for item in examples]
        teacher = nn.utils.rnn.pad_sequence(found, batch_first=True)
        counts = {LABEL_LOSS: counts["loss"], TEACHER_LOSS: self.matching.count(examples)}
        return targets | {"teacher": teacher}, counts

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        outputs = network(**batch.inputs)
        return {
            LABEL_LOSS: self.objective.loss(outputs, batch),
            TEACHER_LOSS: self.matching.loss(outputs, batch.targets["teacher"], batch),
        }
