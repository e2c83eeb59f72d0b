"""Sparse embeddings: a weight for each token of the vocabulary, nearly all of them 0 (SPLADE).

The weight of a token is log(1 + relu(logit)) of a masked LM, the largest over all tokens of the text, special ones
included (Formal et al. 2021, "SPLADE v2"). The network computes it, so that one vector for each text leaves it.
Poolings and activations are those of `SpladePooling` in sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from tasks._encode import encode_texts
from tasks.base import Outputs, Task
from tasks.features import Features
from tasks.masked_lm import MaskedLM
from tasks.prompts import PromptSettings
from tasks.schema import Bounds

SparsePooling = Literal["max", "sum"]
"""Pooling of the weights of a text's tokens: `max` from SPLADE v2 on, `sum` in the first version."""
SparseActivation = Literal["relu", "log1p_relu"]
"""Function of a logit before log(1 + x); `log1p_relu` takes that logarithm twice, as OpenSearch's models do."""
SPARSE_VECTOR = "sparse_embedding"
"""Output of the network."""


@dataclass(frozen=True, slots=True)
class SparseVector:
    """Weights of tokens, largest first; equal ones by id."""

    indices: np.ndarray
    """[weights] int64, ids of the tokens."""
    values: np.ndarray
    """[weights] float32, above 0."""

    def dot(self, other: SparseVector) -> float:
        """Return the dot product with another vector, which is the similarity of both texts."""
        _, mine, theirs = np.intersect1d(self.indices, other.indices, assume_unique=True, return_indices=True)
        return float(self.values[mine].astype(np.float64) @ other.values[theirs])


@dataclass(frozen=True)
class SparseEmbeddingSettings(PromptSettings):
    """Length, prompts, and how logits become weights."""

    pooling: SparsePooling = "max"
    activation: SparseActivation = "relu"
    top_k: Annotated[int, Bounds(least=1, most=2**24)] = 1024
    """Most weights of a vector, the largest ones, for requests that ask for no other number. Trained models give about
    a hundred."""


@dataclass(frozen=True)
class SparseEmbedding(Task[str, Features, SparseVector, SparseEmbeddingSettings]):
    """Predicts sparse vectors for texts."""

    top_k: int = 0
    """Most weights of a vector; 0 for `top_k` of the settings."""
    prompt_name: str | None = None
    """Prompt before each text; None for the default prompt, empty for none."""

    name: ClassVar[str] = "sparse-embedding"
    network: ClassVar[str] = MaskedLM.name
    settings_type: ClassVar[type[SparseEmbeddingSettings]] = SparseEmbeddingSettings
    output_names: ClassVar[tuple[str, ...]] = (SPARSE_VECTOR,)
    token_outputs: ClassVar[bool] = False

    def output_shape(self, *, hidden_size: int, vocab_size: int) -> tuple[int, ...]:
        return (vocab_size,)

    def vector_size(self, hidden_size: int) -> int:
        return self.tokenizer.vocab_size

    def tei_type(self) -> dict[str, Any]:
        return {"embedding": {"pooling": "splade"}}

    def encode(self, examples: Sequence[str], *, truncate: bool = True) -> list[list[Features]]:
        prompt, length = self.settings.prompt(self.prompt_name), self.settings.max_seq_length
        return [[item] for item in encode_texts(self.tokenizer, examples, length, truncate=truncate, prompt=prompt)]

    def decode(self, example: str, features: Sequence[Features], outputs: Sequence[Outputs]) -> SparseVector:
        weights = outputs[0][SPARSE_VECTOR][: self.tokenizer.vocab_size]  # a network may have more ids, for padding
        indices = np.flatnonzero(weights > 0)
        values = weights[indices].astype(np.float32)
        order = np.argsort(-values, kind="stable")[: self.top_k or self.settings.top_k]
        return SparseVector(indices[order], values[order])
