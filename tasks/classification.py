"""Classification of a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tasks._encode import encode_pairs
from tasks.base import Outputs, SeqLength, Task, TaskSettings, check_label_names
from tasks.features import Features
from tasks.metrics import classification_scores


@dataclass(frozen=True, slots=True)
class ClassificationExample:
    """A text or pair of texts, and its label if known."""

    text: str
    text_pair: str | None = None
    label: str | None = None


@dataclass(frozen=True, slots=True)
class ClassificationPrediction:
    """Probabilities over the labels."""

    labels: tuple[str, ...]
    """Labels of the model, in the order of its logits."""
    scores: np.ndarray
    """[labels] float32 probabilities."""

    @property
    def label(self) -> str:
        """Most probable label."""
        return self.labels[int(self.scores.argmax())]

    def ranked(self) -> list[tuple[str, float]]:
        """Return all labels with their scores, most probable first."""
        order = np.argsort(-self.scores, kind="stable")
        return [(self.labels[index], float(self.scores[index])) for index in order]


@dataclass(frozen=True)
class ClassificationSettings(TaskSettings):
    """Length and labels."""

    max_seq_length: SeqLength = 128
    labels: tuple[str, ...] = ()
    """Labels in the order of the logits."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_label_names("classification", self.labels)


@dataclass(frozen=True)
class Classification(Task[ClassificationExample, Features, ClassificationPrediction, ClassificationSettings]):
    """Predicts probabilities over the labels for texts or pairs."""

    name: ClassVar[str] = "classification"
    settings_type: ClassVar[type[TaskSettings]] = ClassificationSettings
    output_names: ClassVar[tuple[str, ...]] = ("logits",)
    token_outputs: ClassVar[bool] = False

    def output_shape(self, *, hidden_size: int, vocab_size: int) -> tuple[int, ...]:
        return (len(self.settings.labels),)

    def encode(self, examples: Sequence[ClassificationExample], *, truncate: bool = True) -> list[list[Features]]:
        texts, pairs = [example.text for example in examples], [example.text_pair for example in examples]
        sequences = encode_pairs(self.tokenizer, texts, pairs, self.settings.max_seq_length, truncate=truncate)
        return [[sequence] for sequence in sequences]

    def decode(
        self, example: ClassificationExample, features: Sequence[Features], outputs: Sequence[Outputs]
    ) -> ClassificationPrediction:
        return ClassificationPrediction(labels=self.settings.labels, scores=softmax(outputs[0]["logits"]))

    def decisions(self, prediction: ClassificationPrediction) -> tuple[str]:
        return (prediction.label,)

    def score(
        self, examples: Sequence[ClassificationExample], predictions: Sequence[ClassificationPrediction]
    ) -> dict[str, float]:
        labels = [example.label or "" for example in examples]
        return classification_scores(labels, [item.label for item in predictions], self.settings.labels)

    def to_dict(self, example: ClassificationExample, prediction: ClassificationPrediction) -> dict[str, Any]:
        texts = {"text": example.text, "text_pair": example.text_pair}
        return texts | {"label": prediction.label, "scores": dict(prediction.ranked())}


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis as float32, computed so that large logits do not overflow."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return (exponentials / exponentials.sum(axis=-1, keepdims=True)).astype(np.float32)
