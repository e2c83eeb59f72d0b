"""Multiple choice: select one of several continuations or answers (SWAG; section 4.4 of the BERT paper).

Each choice is a separate sequence, the given text first and the choice second. The model gives each sequence a logit;
the softmax is over the choices of one example. Examples may differ in their number of choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tasks._encode import encode_pairs, raise_if_invalid, tokenize_texts
from tasks.base import NOT_FINITE, InvalidExample, InvalidExamplesError, Outputs, SeqLength, Task, TaskSettings
from tasks.classification import softmax
from tasks.features import Features
from tasks.metrics import accuracy

MAX_REPEATED_CHARS = 1_000_000
"""Limit of the question's length times the number of choices, since the question is repeated before each choice."""


@dataclass(frozen=True, slots=True)
class MultipleChoiceExample:
    """Choices after a context, a question (or the beginning of a sentence to complete), or both."""

    choices: tuple[str, ...]
    context: str = ""
    question: str = ""
    label: int | None = None
    """Number of the right choice from 0, if known."""
    id: str = ""

    def texts(self, choice: str) -> tuple[str, str | None]:
        """Return the two texts of a choice's sequence. With a context, the question is put before the choice."""
        if self.context:
            return self.context, f"{self.question} {choice}" if self.question else choice
        return (self.question, choice) if self.question else (choice, None)


@dataclass(frozen=True, slots=True)
class MultipleChoicePrediction:
    """Probabilities over the choices."""

    scores: np.ndarray
    """[choices] float32 probabilities."""

    @property
    def choice(self) -> int:
        """Number of the most probable choice."""
        return int(self.scores.argmax())


@dataclass(frozen=True)
class MultipleChoiceSettings(TaskSettings):
    """Length."""

    max_seq_length: SeqLength = 128


@dataclass(frozen=True)
class MultipleChoice(Task[MultipleChoiceExample, Features, MultipleChoicePrediction, MultipleChoiceSettings]):
    """Predicts probabilities over the choices of an example."""

    name: ClassVar[str] = "multiple-choice"
    settings_type: ClassVar[type[TaskSettings]] = MultipleChoiceSettings
    output_names: ClassVar[tuple[str, ...]] = ("logits",)
    token_outputs: ClassVar[bool] = False

    def encode(self, examples: Sequence[MultipleChoiceExample], *, truncate: bool = True) -> list[list[Features]]:
        raise_if_invalid([item for index, example in enumerate(examples) for item in self._invalid(index, example)])
        sources = [(index, number) for index, example in enumerate(examples) for number in range(len(example.choices))]
        texts = [examples[index].texts(examples[index].choices[number]) for index, number in sources]
        firsts, seconds = [first for first, _ in texts], [second for _, second in texts]
        try:
            sequences = iter(
                encode_pairs(self.tokenizer, firsts, seconds, self.settings.max_seq_length, truncate=truncate)
            )
        except InvalidExamplesError as error:
            named = []
            for item in error.invalid:
                index, number = sources[item.index]
                first = "context" if examples[index].context else "question" if examples[index].question else ""
                field = first if first and item.field == "text" else f"choices[{number}]"
                named.append(InvalidExample(index, field, item.reason))
            raise InvalidExamplesError(list(dict.fromkeys(named))) from None
        return [[next(sequences) for _ in example.choices] for example in examples]

    def _invalid(self, index: int, example: MultipleChoiceExample) -> Iterator[InvalidExample]:
        count = len(example.choices)
        if count < 2:
            yield InvalidExample(index, "choices", f"too few: `{count}`; at least two are needed")
        if not (example.context and example.question):
            return
        if count * len(example.question) > MAX_REPEATED_CHARS:
            reason = (
                f"too long: `{len(example.question)}` characters before each of {count} choices (maximum "
                f"`{MAX_REPEATED_CHARS}` in all)"
            )
            yield InvalidExample(index, "question", reason)
        else:  # question and choice become one text, in which an empty one would go unnoticed
            found: list[InvalidExample] = []
            tokenize_texts(self.tokenizer, [example.question, *example.choices], "", found, max_ids=0, stop_after=0)
            for item in found:
                name = f"choices[{item.index - 1}]" if item.index else "question"
                yield InvalidExample(index, name, item.reason)

    def decode(
        self, example: MultipleChoiceExample, features: Sequence[Features], outputs: Sequence[Outputs]
    ) -> MultipleChoicePrediction:
        return MultipleChoicePrediction(scores=softmax(np.array([float(output["logits"]) for output in outputs])))

    def outputs_problem(self, outputs: Sequence[Outputs]) -> str:
        logits = np.array([float(output["logits"]) for output in outputs])  # one of each choice
        return "" if self.is_usable(logits) else NOT_FINITE

    def decisions(self, prediction: MultipleChoicePrediction) -> tuple[int]:
        return (prediction.choice,)

    def score(
        self, examples: Sequence[MultipleChoiceExample], predictions: Sequence[MultipleChoicePrediction]
    ) -> dict[str, float]:
        return {"accuracy": accuracy([example.label for example in examples], [item.choice for item in predictions])}

    def to_dict(self, example: MultipleChoiceExample, prediction: MultipleChoicePrediction) -> dict[str, Any]:
        return {"id": example.id, "choice": prediction.choice, "scores": prediction.scores.tolist()}
