"""Regression: a number for a text or a pair of texts, such as the similarity of two sentences (STS-B)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from tasks._encode import encode_pairs
from tasks.base import Outputs, SeqLength, Task, TaskSettings, is_finite
from tasks.classification import sigmoid
from tasks.features import Features
from tasks.metrics import regression_scores
from tasks.schema import Bounds


@dataclass(frozen=True, slots=True)
class RegressionExample:
    """A text or pair of texts, and its number if known."""

    text: str
    text_pair: str | None = None
    label: float | None = None


Activation = Literal["identity", "sigmoid"]
"""Function that turns the output of a network with one label into the prediction."""


@dataclass(frozen=True)
class RegressionSettings(TaskSettings):
    """Length, activation function, and mean and deviation of the labels. Predictions are in the unit of the labels."""

    max_seq_length: SeqLength = 128
    label_mean: float = 0.0
    """Mean of the labels in training; 0 if unknown."""
    label_deviation: Annotated[float, Bounds(above=0)] = 1.0
    """Standard deviation of the labels in training, to judge errors by; 1 if unknown or constant."""
    activation: Activation = "identity"
    """Function of the network's output: `identity`, or the `sigmoid` of many cross-encoders."""


@dataclass(frozen=True)
class Regression(Task[RegressionExample, Features, float, RegressionSettings]):
    """Predicts a number for texts or pairs."""

    name: ClassVar[str] = "regression"
    settings_type: ClassVar[type[TaskSettings]] = RegressionSettings
    output_names: ClassVar[tuple[str, ...]] = ("logits",)
    token_outputs: ClassVar[bool] = False

    def output_shape(self, *, hidden_size: int, vocab_size: int) -> tuple[int, ...]:
        return (1,)

    def is_usable(self, array: np.ndarray) -> bool:
        return is_finite(array)

    def encode(self, examples: Sequence[RegressionExample], *, truncate: bool = True) -> list[list[Features]]:
        texts, pairs = [example.text for example in examples], [example.text_pair for example in examples]
        sequences = encode_pairs(self.tokenizer, texts, pairs, self.settings.max_seq_length, truncate=truncate)
        return [[sequence] for sequence in sequences]

    def decode(self, example: RegressionExample, features: Sequence[Features], outputs: Sequence[Outputs]) -> float:
        output = float(outputs[0]["logits"][0])
        return float(sigmoid(output)) if self.settings.activation == "sigmoid" else output

    def score(self, examples: Sequence[RegressionExample], predictions: Sequence[float]) -> dict[str, float]:
        return regression_scores([example.label or 0.0 for example in examples], predictions)

    def to_dict(self, example: RegressionExample, prediction: float) -> dict[str, Any]:
        return {"text": example.text, "text_pair": example.text_pair, "value": prediction}
