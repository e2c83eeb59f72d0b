"""Zero-shot classification: labels that a request names, by a model for natural language inference.

Each label is put into a sentence, the hypothesis, and its score measures how far the text entails it (Yin, Hay and Roth
2019). Scores are those of transformers' `ZeroShotClassificationPipeline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tasks._encode import raise_if_invalid, tokenize_fitting, tokenize_texts
from tasks.base import NOT_FINITE, AnyTask, InvalidExample, Outputs, Task, TaskSettings, is_finite
from tasks.classification import DEFAULT_THRESHOLD, Classification, ClassificationPrediction, sigmoid, softmax
from tasks.features import Features
from tasks.text.tokenizer import Tokens

DEFAULT_TEMPLATE = "This example is {}."
"""Hypothesis of transformers; `{}` stands for the label."""
MAX_TEMPLATE_CHARS = 1024


@dataclass(frozen=True)
class ZeroShot(Task[str, Features, ClassificationPrediction, TaskSettings]):
    """Predicts probabilities of named labels for texts. `settings` are those of the scoring task."""

    name: ClassVar[str] = "zero-shot"
    settings_type: ClassVar[type[TaskSettings]] = TaskSettings
    output_names: ClassVar[tuple[str, ...]] = Classification.output_names
    token_outputs: ClassVar[bool] = False

    labels: tuple[str, ...]
    """Labels to choose from."""
    entailment: int
    """Number of the model's label that means that the text entails the hypothesis."""
    contradiction: int
    """Number of the model's label for the opposite."""
    template: str = DEFAULT_TEMPLATE
    multi_label: bool = False
    """True if a text may have any number of labels: each is judged on its own."""

    @property
    def hypotheses(self) -> list[str]:
        """Second texts of the pairs, one for each label."""
        return [self.template.replace("{}", label) for label in self.labels]

    def encode(self, examples: Sequence[str], *, truncate: bool = True) -> list[list[Features]]:
        if not examples:
            return []
        pair, length, invalid = self.tokenizer.pair, self.settings.max_seq_length, list[InvalidExample]()
        hypotheses = self._tokenize_hypotheses(pair.capacity(length) // 2)
        num_more = pair.num_special + max(map(len, hypotheses), default=0)
        texts = tokenize_fitting(
            self.tokenizer, examples, "text", length, invalid, truncate=truncate, num_more=num_more
        )
        raise_if_invalid(invalid)
        return [[self._sequence(text, hypothesis) for hypothesis in hypotheses] for text in texts]

    def _tokenize_hypotheses(self, max_tokens: int) -> list[Tokens]:
        """Return the tokens of the hypotheses, which are never cut.

        Raises:
            InvalidExamplesError: naming the labels whose hypothesis is longer than `max_tokens` or not UTF-8.
        """
        found: list[InvalidExample] = []
        tokens = tokenize_texts(self.tokenizer, self.hypotheses, "label", found)
        for index, item in enumerate(tokens):
            if len(item) > max_tokens:
                reason = f"its sentence is too long: `{len(item)}` tokens (maximum `{max_tokens}`); shorten it"
                found.append(InvalidExample(index, "label", reason))
        raise_if_invalid([InvalidExample(0, f"labels[{item.index}]", item.reason) for item in found])
        return tokens

    def _sequence(self, text: Tokens, hypothesis: Tokens) -> Features:
        """Return a pair; the text is cut so that the hypothesis fits."""
        kept = text.ids[: self.tokenizer.pair.capacity(self.settings.max_seq_length) - len(hypothesis)]
        return Features(**self.tokenizer.assemble(kept, hypothesis.ids), num_truncated=len(text) - len(kept))

    def decode(
        self, example: str, features: Sequence[Features], outputs: Sequence[Outputs]
    ) -> ClassificationPrediction:
        logits = np.array([output["logits"] for output in outputs], dtype=np.float64)
        entailed = logits[:, self.entailment]
        if not self.multi_label:
            return ClassificationPrediction(self.labels, softmax(entailed))
        scores = sigmoid(entailed - logits[:, self.contradiction]).astype(np.float32)
        return ClassificationPrediction(self.labels, scores, scores >= DEFAULT_THRESHOLD)

    def prediction_problem(self, prediction: ClassificationPrediction) -> str:
        return "" if is_finite(prediction.scores) else NOT_FINITE


def entailment_label(task: AnyTask) -> int | None:
    """Return the number of the label that means entailment; None if it is not a model for inference."""
    labels = task.settings.labels if isinstance(task, Classification) else ()
    return next((number for number, label in enumerate(labels) if label.lower().startswith("entail")), None)


def create_zero_shot(task: AnyTask, labels: Sequence[str], *, template: str = "", **options: Any) -> ZeroShot:
    """Return the zero-shot classification by a model.

    Args:
        task: task of the model: classification with a label that begins with `entail`.
        labels: labels to choose from.
        template: hypothesis, in which `{}` stands for the label; empty for `DEFAULT_TEMPLATE`.
        options: other fields of ZeroShot.

    Raises:
        ValueError: when it is no model for inference.
    """
    entailment = entailment_label(task)
    if entailment is None:
        raise ValueError("it is no classification of pairs with a label `entailment` (natural language inference)")
    others = (number for number, label in enumerate(task.settings.labels) if label.lower().startswith("contra"))
    contradiction = next(others, -1 if entailment == 0 else 0)  # as transformers chooses among two labels
    template = template or DEFAULT_TEMPLATE
    return ZeroShot(task.tokenizer, task.settings, tuple(labels), entailment, contradiction, template, **options)
