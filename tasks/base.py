"""What every task is: settings, `encode`, `decode`; and how an unusable example is reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from tasks.bounds import MAX_LABEL_CHARS, MAX_LABELS, MAX_SEQ_LENGTH, check_bounds
from tasks.features import Features
from tasks.tokenizer import Tokenizer

ExampleT = TypeVar("ExampleT")
FeaturesT = TypeVar("FeaturesT", bound=Features)
PredictionT = TypeVar("PredictionT")

Outputs = dict[str, np.ndarray]
"""Outputs of the model by name, for one sequence: [length, ...] or [...], without padding."""


@dataclass(frozen=True, slots=True)
class InvalidExample:
    """Why one example of a list cannot be encoded."""

    index: int
    field: str
    reason: str

    def __str__(self) -> str:
        return f"example {self.index}, {self.field}: {self.reason}"


class InvalidExamplesError(ValueError):
    """Some examples cannot be encoded; `invalid` names each of them."""

    def __init__(self, invalid: Sequence[InvalidExample]) -> None:
        self.invalid = list(invalid)
        more = f" (and {len(self.invalid) - 3} more)" if len(self.invalid) > 3 else ""
        super().__init__("; ".join(str(item) for item in self.invalid[:3]) + more)


@dataclass(frozen=True)
class TaskSettings:
    """How a model treats text. Decided when it is trained, carried by checkpoint and manifest, never set at serving."""

    max_seq_length: int = 512
    """Longest sequence, in tokens, [CLS] and [SEP] included; 8 to 65,536."""

    def __post_init__(self) -> None:
        check_bounds(self, {"max_seq_length": (8, MAX_SEQ_LENGTH)})


def check_label_names(task: str, labels: Sequence[str]) -> None:
    """Check that labels are distinct, and neither too many nor too long.

    Raises:
        ValueError: naming the task, and all of them or the first that is too long.
    """
    if len(labels) > MAX_LABELS:
        raise ValueError(f"labels of {task} must be at most {MAX_LABELS}: there are `{len(labels)}`")
    if long := next((label for label in labels if len(label) > MAX_LABEL_CHARS), ""):
        raise ValueError(f"a label of {task} must have at most {MAX_LABEL_CHARS} characters: `{long[:50]}...`")
    if len(labels) < 2 or len(set(labels)) != len(labels):
        raise ValueError(f"{task} needs at least two labels, each once: `{list(labels)}`")
    if not all(map(str.strip, labels)):
        raise ValueError(f"a label of {task} is blank: `{list(labels)}`")


SettingsT = TypeVar("SettingsT", bound=TaskSettings)


@dataclass(frozen=True)
class Task(Generic[ExampleT, FeaturesT, PredictionT, SettingsT]):
    """One kind of question put to an encoder. Subclasses say what their examples and predictions are."""

    tokenizer: Tokenizer
    settings: SettingsT

    name: ClassVar[str]
    settings_type: ClassVar[type[TaskSettings]]
    output_names: ClassVar[tuple[str, ...]]
    """Outputs that the graph must have."""
    token_outputs: ClassVar[bool]
    """Whether the outputs are per token ([batch, length, ...]) rather than per sequence ([batch, ...])."""

    def complete(self, example: ExampleT) -> ExampleT:
        """An example that came as bare text, with what is to be found in it (words to tag); most are complete."""
        return example

    def encode(self, examples: Sequence[ExampleT], *, truncate: bool = True) -> list[list[FeaturesT]]:
        """Turn examples into features.

        Args:
            examples: raw records.
            truncate: cut what is too long; otherwise it is an error that says how many tokens came and how many fit.

        Returns:
            For each example its features: one sequence, or several windows.

        Raises:
            InvalidExamplesError: naming every example that is empty or, without `truncate`, too long.
        """
        raise NotImplementedError

    def decode(self, example: ExampleT, features: Sequence[FeaturesT], outputs: Sequence[Outputs]) -> PredictionT:
        """Turn the outputs of the model for the features of one example into a prediction."""
        raise NotImplementedError

    def score(self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT]) -> dict[str, float]:
        """Scores of predictions against the truth that the examples hold, by name, official metrics first."""
        raise NotImplementedError

    def to_dict(self, example: ExampleT, prediction: PredictionT) -> dict[str, Any]:
        """A prediction as JSON-compatible values, with what of the example tells which one it is.

        Raises:
            ValueError: when predictions of this task are too large to write down.
        """
        raise ValueError(f"predictions of task `{self.name}` cannot be written")

    def with_settings(self, **changes: Any) -> Self:
        """The same task with some settings changed (a request that asks for vectors of length 1, say)."""
        return replace(self, settings=replace(self.settings, **changes)) if changes else self


AnyTask = Task[Any, Any, Any, Any]
"""A task, whichever it is."""
