"""Base class of the tasks (settings, `encode`, `decode`, `score`), and errors for examples that cannot be encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from tasks.features import Features
from tasks.schema import Bounds, check_bounds
from tasks.text.tokenizer import Tokenizer

ExampleT = TypeVar("ExampleT")
FeaturesT = TypeVar("FeaturesT", bound=Features)
PredictionT = TypeVar("PredictionT")

Outputs = dict[str, np.ndarray]
"""Model outputs for one sequence by name: [length, ...] or [...], without padding."""
NOT_FINITE = "NaN or infinity"


@dataclass(frozen=True, slots=True)
class InvalidExample:
    """Reason why one example of a list cannot be encoded."""

    index: int
    field: str
    reason: str

    def __str__(self) -> str:
        return f"example {self.index}, {self.field}: {self.reason}"


class InvalidExamplesError(ValueError):
    """Raised when examples cannot be encoded; `invalid` lists all of them."""

    def __init__(self, invalid: Sequence[InvalidExample]) -> None:
        self.invalid = list(invalid)
        more = f" (and {len(self.invalid) - 3} more)" if len(self.invalid) > 3 else ""
        super().__init__("; ".join(str(item) for item in self.invalid[:3]) + more)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


MIN_SEQ_LENGTH, MAX_SEQ_LENGTH = 8, 65_536
"""Fewest and most tokens of a sequence."""
MAX_LABELS = 65_536
MAX_LABEL_CHARS = 1024
SeqLength = Annotated[int, Bounds(least=MIN_SEQ_LENGTH, most=MAX_SEQ_LENGTH)]
"""Length of a sequence in tokens."""


@dataclass(frozen=True)
class TaskSettings:
    """Settings of a model for text: decided in training, stored in checkpoint and manifest, never set at serving."""

    max_seq_length: SeqLength = 512
    """Longest sequence in tokens, [CLS] and [SEP] included; 8 to 65,536."""

    def __post_init__(self) -> None:
        check_bounds(self)


def check_label_names(task: str, labels: Sequence[str]) -> None:
    """Check the number, the length and the uniqueness of labels.

    Raises:
        ValueError: naming the task and the labels that are wrong.
    """
    if len(labels) > MAX_LABELS:
        raise ValueError(f"{task} can have at most {MAX_LABELS} labels, not `{len(labels)}`")
    if long := next((label for label in labels if len(label) > MAX_LABEL_CHARS), ""):
        raise ValueError(f"a label of {task} must have at most {MAX_LABEL_CHARS} characters: `{long[:50]}...`")
    if len(labels) < 2 or len(set(labels)) != len(labels):
        raise ValueError(f"{task} needs at least two labels, each once: `{list(labels)}`")
    if not all(map(str.strip, labels)):
        raise ValueError(f"a label of {task} is blank: `{list(labels)}`")


def is_finite(array: np.ndarray) -> bool:
    """Return whether no number is NaN or infinite."""
    return bool(np.isfinite(array).all())


SettingsT = TypeVar("SettingsT", bound=TaskSettings)


@dataclass(frozen=True)
class Task(Generic[ExampleT, FeaturesT, PredictionT, SettingsT]):
    """Text to features and outputs to predictions, for one kind of model. Subclasses define both types."""

    tokenizer: Tokenizer
    settings: SettingsT

    name: ClassVar[str]
    network: ClassVar[str] = ""
    """Task whose network computes the outputs, where it is another one: masked-lm for sparse vectors."""
    settings_type: ClassVar[type[TaskSettings]]
    output_names: ClassVar[tuple[str, ...]]
    """Names of the outputs of the network and the graph."""
    token_outputs: ClassVar[bool]
    """True if outputs are per token ([batch, length, ...]), False if per sequence ([batch, ...])."""
    chunk_size: ClassVar[int] = 256
    """Examples of an evaluation whose outputs are in memory at a time."""
    length_setting: ClassVar[str] = "max_seq_length"
    """Setting that truncates texts."""

    @property
    def network_task(self) -> str:
        """Name of the task whose network computes the outputs."""
        return self.network or self.name

    def output_shape(self, *, hidden_size: int, vocab_size: int) -> tuple[int, ...]:
        """Return the shape of each output without batch and length; empty for single numbers."""
        return ()

    def complete(self, example: ExampleT) -> ExampleT:
        """Return the example with its words, where the task works on words and the example is bare text."""
        return example

    def encode(self, examples: Sequence[ExampleT], *, truncate: bool = True) -> list[list[FeaturesT]]:
        """Turn examples into features.

        Args:
            truncate: cut texts that are too long; otherwise they are invalid, and the reason has both token counts.

        Returns:
            The features of each example: one sequence, or several windows.

        Raises:
            InvalidExamplesError: naming every example that is empty or, without `truncate`, too long.
        """
        raise NotImplementedError

    def decode(self, example: ExampleT, features: Sequence[FeaturesT], outputs: Sequence[Outputs]) -> PredictionT:
        """Turn the model outputs for the features of one example into a prediction."""
        raise NotImplementedError

    def is_usable(self, array: np.ndarray) -> bool:
        """Return whether outputs of the network are usable: logits, some of which may be minus infinity."""
        return not array.size or bool(np.isfinite(array.max(axis=-1)).all())  # the maximum with a NaN is NaN

    def outputs_problem(self, outputs: Sequence[Outputs]) -> str:
        """Return what is wrong with the outputs for one example, before `decode`; empty if nothing is."""
        return "" if all(self.is_usable(array) for output in outputs for array in output.values()) else NOT_FINITE

    def prediction_problem(self, prediction: PredictionT) -> str:
        """Return what is wrong with a prediction that `outputs_problem` cannot know; empty if nothing is."""
        return ""

    def vector_size(self, hidden_size: int) -> int:
        """Return the dimension of the vectors that a model returns; 0 for a task without vectors."""
        return 0

    def tei_type(self) -> dict[str, Any]:
        """Return what a model is for, as Text Embeddings Inference writes it; `reranker` for one that gives numbers."""
        labels = getattr(self.settings, "labels", ("LABEL_0",))
        numbers = {label: number for number, label in enumerate(labels)}
        kind = "classifier" if hasattr(self.settings, "labels") else "reranker"
        return {kind: {"id2label": {str(number): label for label, number in numbers.items()}, "label2id": numbers}}

    def decisions(self, prediction: PredictionT) -> Sequence[object]:
        """Return what a prediction decides, such as a label or tags, to count equal ones; empty for numbers."""
        return ()

    def score(self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT]) -> dict[str, float]:
        """Score predictions against the labels of their examples; return scores by name, official metrics first."""
        raise NotImplementedError

    def class_scores(
        self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT]
    ) -> dict[str, dict[str, float]]:
        """Return precision, recall, F1 and support of each label or type of entity; empty for a task without them."""
        return {}

    def to_dict(self, example: ExampleT, prediction: PredictionT) -> dict[str, Any]:
        """Return a prediction as JSON-compatible values, with the id or text of its example.

        Raises:
            ValueError: when predictions of this task are too large to write.
        """
        raise ValueError(f"predictions of task `{self.name}` cannot be written")

    def with_settings(self, **changes: Any) -> Self:
        """Return the task with some settings changed, as a request may ask (`normalize=True`)."""
        return replace(self, settings=replace(self.settings, **changes)) if changes else self


AnyTask = Task[Any, Any, Any, Any]
"""Any task."""
