"""Embeddings: one vector per text, the last hidden state of [CLS] or the mean over tokens.

The network pools: no more than the vector leaves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from tasks._fit import check_length, raise_if_invalid, tokenize_texts
from tasks.base import InvalidExample, Outputs, Task, TaskSettings
from tasks.features import Features

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
    """Examples are texts, predictions are vectors [hidden] float32."""

    name: ClassVar[str] = "embedding"
    settings_type: ClassVar[type[TaskSettings]] = EmbeddingSettings
    output_names: ClassVar[tuple[str, ...]] = ("sentence_embedding",)
    token_outputs: ClassVar[bool] = False

    def encode(self, examples: Sequence[str], *, truncate: bool = True) -> list[list[Features]]:
        invalid: list[InvalidExample] = []
        tokens = tokenize_texts(self.tokenizer, examples, "text", invalid)
        if not truncate:
            for index, item in enumerate(tokens):
                check_length(index, "text", len(item) + 2, self.settings.max_seq_length, invalid)
        raise_if_invalid(invalid)
        max_tokens = self.settings.max_seq_length - 2
        return [[Features(**self.tokenizer.assemble(item.ids[:max_tokens]))] for item in tokens]

    def decode(self, example: str, features: Sequence[Features], outputs: Sequence[Outputs]) -> np.ndarray:
        vector = np.asarray(outputs[0]["sentence_embedding"], dtype=np.float32)
        return vector / max(float(np.linalg.norm(vector)), 1e-12) if self.settings.normalize else vector
