"""Embeddings: one vector per text, the last hidden state of [CLS] or the mean over tokens.

The network pools, so that only the vector leaves it. A text beyond max_seq_length is cut or, on request, split into
windows whose vectors are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from tasks._encode import check_length, fit_text, raise_if_invalid, tokenize_texts
from tasks.base import InvalidExample, Outputs, Task, TaskSettings
from tasks.features import Features
from tasks.windows import window_bounds

Pooling = Literal["cls", "mean"]


@dataclass(frozen=True)
class EmbeddingSettings(TaskSettings):
    """Length, pooling and normalization."""

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
    """Predicts vectors, [hidden, or `dimensions`] float32, for texts."""

    windows: bool = False
    """Split longer texts into windows of max_seq_length and average their vectors by tokens, instead of cutting."""
    window_stride: int = 0
    """Tokens from the start of one window to the start of the next; 0 for windows that do not overlap."""
    dimensions: int = 0
    """Keep only the first dimensions of each vector; 0 for all. For models trained for it (Matryoshka)."""

    name: ClassVar[str] = "embedding"
    settings_type: ClassVar[type[TaskSettings]] = EmbeddingSettings
    output_names: ClassVar[tuple[str, ...]] = ("sentence_embedding",)
    token_outputs: ClassVar[bool] = False

    def output_shape(self, *, hidden_size: int, vocab_size: int) -> tuple[int, ...]:
        return (hidden_size,)

    def encode(self, examples: Sequence[str], *, truncate: bool = True) -> list[list[Features]]:
        invalid: list[InvalidExample] = []
        max_length = self.settings.max_seq_length
        max_ids = None if self.windows else max_length
        stop_after = None if self.windows or truncate else max_length
        tokens = tokenize_texts(self.tokenizer, examples, "text", invalid, max_ids=max_ids, stop_after=stop_after)
        if not (truncate or self.windows):
            for index, item in enumerate(tokens):
                check_length(
                    index,
                    "text",
                    self.tokenizer.single.length(item),
                    max_length,
                    invalid,
                    is_complete=item.is_complete,
                )
        raise_if_invalid(invalid)
        if self.windows:
            return [self._windows(item.ids) for item in tokens]
        return [[fit_text(self.tokenizer, item, max_length)] for item in tokens]

    def _windows(self, ids: np.ndarray) -> list[Features]:
        capacity = self.tokenizer.single.capacity(self.settings.max_seq_length)
        bounds = self.tokenizer.report_sequences(window_bounds(len(ids), capacity, self.window_stride or capacity))
        return [Features(**self.tokenizer.assemble(ids[start:end])) for start, end in bounds]

    def decode(self, example: str, features: Sequence[Features], outputs: Sequence[Outputs]) -> np.ndarray:
        vectors = np.array([output["sentence_embedding"] for output in outputs], dtype=np.float32)
        num_special = self.tokenizer.single.num_special
        weights = [len(window) - num_special for window in features]
        vector = vectors[0] if len(vectors) == 1 else _weighted_mean(vectors, weights)
        vector = vector[: self.dimensions or None]
        return vector / max(float(np.linalg.norm(vector)), 1e-12) if self.settings.normalize else vector


def _weighted_mean(vectors: np.ndarray, num_tokens: Sequence[int]) -> np.ndarray:
    """Return the mean of [windows, hidden], weighted by the text tokens of each window."""
    return np.average(vectors, axis=0, weights=num_tokens).astype(np.float32)
