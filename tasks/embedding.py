"""Embeddings: one vector per text, the last hidden state of [CLS] or the mean over tokens.

The network pools: no more than the vector leaves it. A text beyond max_seq_length is cut or, on request, read in
windows whose vectors are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from tasks._encode import Reading, check_length, fit_text, raise_if_invalid, tokenize_texts
from tasks.base import InvalidExample, Outputs, Task, TaskSettings
from tasks.features import Features
from tasks.windows import window_bounds

Pooling = Literal["cls", "mean"]


@dataclass(frozen=True)
class EmbeddingSettings(TaskSettings):
    """How texts become vectors."""

    pooling: Pooling = "cls"
    """`cls`: the last hidden state of [CLS]; `mean`: over all tokens, specials included."""
    normalize: bool = False
    """Divide each vector by its Euclidean norm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pooling not in get_args(Pooling):
            raise ValueError(f"unknown pooling: `{self.pooling}` (one of: {', '.join(get_args(Pooling))})")


@dataclass(frozen=True)
class Embedding(Task[str, Features, np.ndarray, EmbeddingSettings]):
    """Examples are texts, predictions are vectors [hidden, or `dimensions`] float32."""

    windows: bool = False
    """Read longer texts in windows of max_seq_length, and average their vectors by their tokens, instead of cutting."""
    window_stride: int = 0
    """Tokens from the start of one window to the start of the next; 0 for windows that do not overlap."""
    dimensions: int = 0
    """Keep so many numbers of each vector, the first ones; 0 for all. Meant for models trained so (Matryoshka)."""

    name: ClassVar[str] = "embedding"
    settings_type: ClassVar[type[TaskSettings]] = EmbeddingSettings
    output_names: ClassVar[tuple[str, ...]] = ("sentence_embedding",)
    token_outputs: ClassVar[bool] = False

    def encode(self, examples: Sequence[str], *, truncate: bool = True) -> list[list[Features]]:
        invalid: list[InvalidExample] = []
        max_length = self.settings.max_seq_length
        reading = Reading() if self.windows else Reading(keep=max_length, enough=None if truncate else max_length)
        tokens = tokenize_texts(self.tokenizer, examples, "text", invalid, reading)
        if not (truncate or self.windows):
            for index, item in enumerate(tokens):
                check_length(index, "text", len(item) + 2, max_length, invalid, is_whole=item.is_whole)
        raise_if_invalid(invalid)
        if self.windows:
            return [self._windows(item.ids) for item in tokens]
        return [[fit_text(self.tokenizer, item, max_length)] for item in tokens]

    def _windows(self, ids: np.ndarray) -> list[Features]:
        capacity = self.settings.max_seq_length - 2
        bounds = self.tokenizer.planned(window_bounds(len(ids), capacity, self.window_stride or capacity))
        return [Features(**self.tokenizer.assemble(ids[start:end])) for start, end in bounds]

    def decode(self, example: str, features: Sequence[Features], outputs: Sequence[Outputs]) -> np.ndarray:
        vectors = np.array([output["sentence_embedding"] for output in outputs], dtype=np.float32)
        vector = vectors[0] if len(vectors) == 1 else _mean(vectors, [len(window) - 2 for window in features])
        vector = vector[: self.dimensions or None]
        return vector / max(float(np.linalg.norm(vector)), 1e-12) if self.settings.normalize else vector


def _mean(vectors: np.ndarray, num_tokens: Sequence[int]) -> np.ndarray:
    """Mean of [windows, hidden], weighted by the tokens of the text that each window holds."""
    return np.average(vectors, axis=0, weights=num_tokens).astype(np.float32)
