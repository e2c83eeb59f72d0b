"""Classification of a text or a pair of texts: one label each, or any number of labels.

Both kinds have the same network, requests and commands. They differ by the setting `problem_type`, Hugging Face's word.
With one label, scores are a softmax. With any number, each score is a sigmoid, and a label is selected if its score
reaches its threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np

from tasks._encode import encode_pairs
from tasks.base import Outputs, SeqLength, Task, TaskSettings, check_label_names
from tasks.features import Features
from tasks.metrics import classification_scores, multi_label_scores, scores_by_label
from tasks.schema import Bounds

ProblemType = Literal["single_label_classification", "multi_label_classification"]
SINGLE_LABEL, MULTI_LABEL = get_args(ProblemType)
DEFAULT_THRESHOLD = 0.5


@dataclass(frozen=True, slots=True)
class ClassificationExample:
    """A text or pair of texts, and its label or labels if known."""

    text: str
    text_pair: str | None = None
    label: str | None = None
    labels: tuple[str, ...] | None = None
    """Labels in data with any number of them; None in data with one."""


@dataclass(frozen=True, slots=True)
class ClassificationPrediction:
    """Probabilities of the labels."""

    labels: tuple[str, ...]
    """Labels of the model, in the order of its logits."""
    scores: np.ndarray
    """[labels] float32 probabilities; they sum to 1 if each text has one label."""
    reached: np.ndarray | None = None
    """[labels] bool: scores that reach their threshold; None if each text has one label."""

    @property
    def label(self) -> str:
        """Most probable label."""
        return self.labels[int(self.scores.argmax())]

    def ranked(self) -> list[tuple[str, float]]:
        """Return all labels with their scores, most probable first."""
        return [(self.labels[index], float(self.scores[index])) for index in self._order]

    def top(self, count: int | None) -> list[tuple[str, float]]:
        """Return the most probable labels with their scores, and all selected ones, most probable first.

        Args:
            count: number of labels; None for all. Selected labels beyond it are returned as well.
        """
        if count is None or self.reached is None:
            return self.ranked()[:count]
        chosen = [index for rank, index in enumerate(self._order) if rank < count or self.reached[index]]
        return [(self.labels[index], float(self.scores[index])) for index in chosen]

    @property
    def selected(self) -> tuple[str, ...]:
        """Labels of the text, most probable first: the most probable one, or those that reach their threshold."""
        if self.reached is None:
            return (self.label,)
        return tuple(self.labels[index] for index in self._order if self.reached[index])

    @property
    def _order(self) -> np.ndarray:
        return np.argsort(-self.scores, kind="stable")


@dataclass(frozen=True)
class ClassificationSettings(TaskSettings):
    """Length, labels, and the number of labels of a text."""

    max_seq_length: SeqLength = 128
    labels: tuple[str, ...] = ()
    """Labels in the order of the logits."""
    problem_type: ProblemType = SINGLE_LABEL
    """`single_label_classification`: each text has one label; `multi_label_classification`: any number."""
    thresholds: tuple[Annotated[float, Bounds(least=0, most=1)], ...] = ()
    """Smallest score that selects a label, for each label; empty for 0.5. Only for multi_label_classification."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_label_names("classification", self.labels)
        if self.thresholds and not self.is_multi_label:
            raise ValueError(f"thresholds need problem_type {MULTI_LABEL}, not `{self.problem_type}`; leave them out")
        if self.thresholds and len(self.thresholds) != len(self.labels):
            raise ValueError(
                f"need a threshold for each label: `{len(self.thresholds)}` thresholds, `{len(self.labels)}` labels"
            )

    @property
    def is_multi_label(self) -> bool:
        """True if a text has any number of labels."""
        return self.problem_type == MULTI_LABEL

    @property
    def label_thresholds(self) -> np.ndarray:
        """Threshold of each label, [labels] float64."""
        return np.array(self.thresholds or (DEFAULT_THRESHOLD,) * len(self.labels))


@dataclass(frozen=True)
class Classification(Task[ClassificationExample, Features, ClassificationPrediction, ClassificationSettings]):
    """Predicts probabilities of the labels for texts or pairs."""

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
        logits = outputs[0]["logits"]
        if not self.settings.is_multi_label:
            return ClassificationPrediction(labels=self.settings.labels, scores=softmax(logits))
        scores = sigmoid(logits).astype(np.float32)
        return self.decide(ClassificationPrediction(labels=self.settings.labels, scores=scores))

    def decide(self, prediction: ClassificationPrediction) -> ClassificationPrediction:
        """Return a multi-label prediction, made with other thresholds, as it is with those of the settings."""
        return replace(prediction, reached=prediction.scores >= self.settings.label_thresholds)

    def decisions(self, prediction: ClassificationPrediction) -> Sequence[object]:
        return (prediction.label,) if prediction.reached is None else prediction.reached.tolist()

    def score(
        self, examples: Sequence[ClassificationExample], predictions: Sequence[ClassificationPrediction]
    ) -> dict[str, float]:
        if self.settings.is_multi_label:
            truths = [example.labels or () for example in examples]
            return multi_label_scores(truths, [item.selected for item in predictions], self.settings.labels)
        labels = [example.label or "" for example in examples]
        return classification_scores(labels, [item.label for item in predictions], self.settings.labels)

    def class_scores(
        self, examples: Sequence[ClassificationExample], predictions: Sequence[ClassificationPrediction]
    ) -> dict[str, dict[str, float]]:
        truths = [(example.label or "",) if example.labels is None else example.labels for example in examples]
        return scores_by_label(truths, [item.selected for item in predictions], self.settings.labels)

    def to_dict(self, example: ClassificationExample, prediction: ClassificationPrediction) -> dict[str, Any]:
        texts = {"text": example.text, "text_pair": example.text_pair}
        several = self.settings.is_multi_label
        found = {"labels": list(prediction.selected)} if several else {"label": prediction.label}
        return texts | found | {"scores": dict(prediction.ranked())}


def best_thresholds(
    examples: Sequence[ClassificationExample], predictions: Sequence[ClassificationPrediction], labels: Sequence[str]
) -> tuple[float, ...]:
    """Return the threshold of each label with the best F1 of that label.

    Of equal ones, the closest to 0.5; and 0.5 for a label that no example has.
    """
    scores = np.array([prediction.scores for prediction in predictions], dtype=np.float64)
    truths = [set(example.labels or ()) for example in examples]
    return tuple(
        _best_threshold(scores[:, index], np.array([label in truth for truth in truths]))
        for index, label in enumerate(labels)
    )


def _best_threshold(scores: np.ndarray, truths: np.ndarray) -> float:
    """Return the threshold of one label with the best F1.

    Args:
        scores: [examples] float64.
        truths: [examples] bool.
    """
    if not truths.any():
        return DEFAULT_THRESHOLD
    order = np.argsort(-scores)
    highs = scores[order]
    lows = np.append(highs[1:], 0.0)  # a threshold above the low, up to the high, selects the examples up to the high
    is_tied = np.append(highs[1:] == highs[:-1], False)
    f1 = 2 * np.cumsum(truths[order]) / (np.arange(1, len(scores) + 1) + truths.sum())
    thresholds = np.where(
        (lows < DEFAULT_THRESHOLD) & (highs >= DEFAULT_THRESHOLD), DEFAULT_THRESHOLD, (highs + lows) / 2
    )
    ranks = np.lexsort((np.abs(thresholds - DEFAULT_THRESHOLD), -np.round(f1, 9), is_tied))
    return float(thresholds[ranks[0]])


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis as float32, computed so that large logits do not overflow."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return (exponentials / exponentials.sum(axis=-1, keepdims=True)).astype(np.float32)


def sigmoid(logits: np.ndarray | float) -> np.ndarray:
    """Return the sigmoid as float64, computed so that large logits do not overflow."""
    return np.exp(-np.logaddexp(0.0, -np.asarray(logits, dtype=np.float64)))
