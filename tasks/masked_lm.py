"""Masked language modelling: the most probable tokens at each mask token of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tasks._encode import fit_text, raise_if_invalid, tokenize_fitting
from tasks.base import NOT_FINITE, InvalidExample, Outputs, Task, TaskSettings
from tasks.features import Features

MASKS_PER_BLOCK = 16
"""Masks computed at a time: hundreds of them, with a large vocabulary, would take hundreds of megabytes."""


@dataclass(frozen=True, slots=True)
class ClozeExample:
    """A text with mask tokens in it, and the original tokens if known."""

    text: str
    tokens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MaskPrediction:
    """Log-probabilities at each mask."""

    log_probs: np.ndarray
    """[masks, vocabulary] float32. A network may have more ids, for padding; their probability is missing here."""

    def top(self, mask: int, count: int) -> list[tuple[int, float]]:
        """Return the `count` most probable token ids at one mask with their probabilities, most probable first."""
        row = self.log_probs[mask]
        count = min(count, len(row))
        least = np.partition(row, -count)[-count]  # 50 times as fast as sorting the whole vocabulary
        candidates = np.flatnonzero(~(row < least))
        order = candidates[np.argsort(-row[candidates], kind="stable")][:count]
        return [(int(index), float(np.exp(row[index]))) for index in order]


@dataclass(frozen=True)
class MaskedLMSettings(TaskSettings):
    """Length."""


@dataclass(frozen=True)
class MaskedLM(Task[ClozeExample, Features, MaskPrediction, MaskedLMSettings]):
    """Predicts a distribution over the vocabulary at each mask token of a text."""

    name: ClassVar[str] = "masked-lm"
    settings_type: ClassVar[type[TaskSettings]] = MaskedLMSettings
    output_names: ClassVar[tuple[str, ...]] = ("logits",)
    token_outputs: ClassVar[bool] = True
    chunk_size: ClassVar[int] = 32

    def __post_init__(self) -> None:
        if self.tokenizer.mask_id is None:
            raise ValueError("the tokenizer has no mask token, so this model cannot do `masked-lm`")

    @property
    def mask_id(self) -> int:
        """Id of the mask token."""
        assert self.tokenizer.mask_id is not None  # checked when the task was made
        return self.tokenizer.mask_id

    def output_shape(self, *, hidden_size: int, vocab_size: int) -> tuple[int, ...]:
        return (vocab_size,)

    def encode(self, examples: Sequence[ClozeExample], *, truncate: bool = True) -> list[list[Features]]:
        invalid: list[InvalidExample] = []
        max_length, template = self.settings.max_seq_length, self.tokenizer.single
        mask = self.tokenizer.mask_token
        texts = [example.text for example in examples]
        num_more = template.num_special
        tokens = tokenize_fitting(
            self.tokenizer, texts, "text", max_length, invalid, truncate=truncate, num_more=num_more
        )
        for index, item in enumerate(tokens):
            if len(item) and not (item.ids[: template.capacity(max_length)] == self.mask_id).any():
                invalid.append(InvalidExample(index, "text", f"no `{mask}` among the tokens that fit"))
        raise_if_invalid(invalid)
        return [[fit_text(self.tokenizer, item, max_length)] for item in tokens]

    def decode(self, example: ClozeExample, features: Sequence[Features], outputs: Sequence[Outputs]) -> MaskPrediction:
        logits, positions = outputs[0]["logits"], np.flatnonzero(features[0].input_ids == self.mask_id)
        log_probs = np.empty((len(positions), min(self.tokenizer.vocab_size, logits.shape[-1])), np.float32)
        for first in range(0, len(positions), MASKS_PER_BLOCK):
            rows = slice(first, first + MASKS_PER_BLOCK)
            log_probs[rows] = log_softmax(logits[positions[rows]])[:, : self.tokenizer.vocab_size]
        return MaskPrediction(log_probs=log_probs)

    def outputs_problem(self, outputs: Sequence[Outputs]) -> str:
        return ""  # a prediction needs few of the hundred thousand logits of each token

    def prediction_problem(self, prediction: MaskPrediction) -> str:
        return "" if self.is_usable(prediction.log_probs) else NOT_FINITE

    def decisions(self, prediction: MaskPrediction) -> list[int]:
        return [int(token_id) for token_id in prediction.log_probs.argmax(-1)]

    def score(self, examples: Sequence[ClozeExample], predictions: Sequence[MaskPrediction]) -> dict[str, float]:
        losses, hits = [], []
        for example, prediction in zip(examples, predictions, strict=True):
            for row, token in zip(prediction.log_probs, example.tokens, strict=False):
                token_id = self.tokenizer.token_id(token)
                if token_id is None:
                    raise ValueError(f"not a token of the vocabulary: `{token}`")
                losses.append(-row[token_id])
                hits.append(row.argmax() == token_id)
        return {"loss": float(np.mean(losses)), "accuracy": float(np.mean(hits))}


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the log-softmax over the last axis as float32."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))).astype(np.float32)
