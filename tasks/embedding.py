"""Embeddings: one vector per text, pooled from the last hidden states of its tokens.

The network pools, so that only the vector leaves it. Poolings and layers are those of sentence-transformers. A text
beyond max_seq_length is cut or, on request, split into windows whose vectors are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from tasks._encode import (
    encode_texts,
    num_common,
    prompt_ids_of,
    prompted_windows,
    raise_if_invalid,
    tokenize_prompted,
)
from tasks.base import NOT_FINITE, InvalidExample, Outputs, Task, TaskSettings, is_finite
from tasks.features import Features
from tasks.prompts import PromptSettings
from tasks.small_vectors import VectorFormat, to_bytes

Pooling = Literal["cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
"""Poolings, named as in sentence-transformers."""
SimilarityName = Literal["cosine", "dot", "euclidean", "manhattan"]
Activation = Literal["identity", "tanh", "relu", "gelu", "sigmoid", "silu"]
Layer = Literal["normalize", "dense identity", "dense tanh", "dense relu", "dense gelu", "dense sigmoid", "dense silu"]
"""Layer over vectors: division by their Euclidean norm, or a linear layer and its activation function."""
NORMALIZE: Layer = "normalize"
_DENSE = "dense "


def dense_layer(activation: Activation) -> Layer:
    """Return the name of a linear layer and its activation function."""
    return f"{_DENSE}{activation}"  # type: ignore[return-value]


def activation_of(layer: str) -> Activation | None:
    """Return the activation function of a linear layer, from its name; None for `NORMALIZE`."""
    return layer.removeprefix(_DENSE) if layer.startswith(_DENSE) else None  # type: ignore[return-value]


@dataclass(frozen=True)
class EmbeddingSettings(PromptSettings):
    """Length, prompts, pooling, layers after pooling, and normalisation."""

    pooling: Pooling | tuple[Pooling, ...] = "cls"
    """`cls`: the last hidden state of the first token; `lasttoken`: of the last one; `mean`, `max`: over all tokens,
    specials included; `weightedmean`: the mean weighted by position, from 1; `mean_sqrt_len_tokens`: the sum divided by
    the square root of the number of tokens. Several: one after the other in a longer vector."""
    normalize: bool = False
    """Divide each vector by its Euclidean norm."""
    layers: tuple[Layer, ...] = ()
    """Layers between pooling and `normalize`, in order: `dense tanh` (or another activation), `normalize`."""
    similarity_fn_name: SimilarityName | None = None
    """Similarity that the model was trained for; None if it is not known."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.pooling, str):  # a list of JSON
            object.__setattr__(self, "pooling", self.poolings[0] if len(self.poolings) == 1 else self.poolings)
        if not self.poolings:
            raise ValueError("pooling must name at least one")

    @property
    def poolings(self) -> tuple[Pooling, ...]:
        """Poolings in the order of their parts of the vector."""
        return (self.pooling,) if isinstance(self.pooling, str) else tuple(self.pooling)


@dataclass(frozen=True)
class Embedding(Task[str, Features, np.ndarray, EmbeddingSettings]):
    """Predicts vectors, [hidden, or `dimensions`] float32, for texts."""

    windows: bool = False
    """Split longer texts into windows of max_seq_length and average their vectors by tokens, instead of cutting."""
    window_stride: int = 0
    """Tokens from the start of one window to the start of the next; 0 for windows that do not overlap."""
    dimensions: int = 0
    """Keep only the first dimensions of each vector; 0 for all. For models trained for it (Matryoshka)."""
    format: VectorFormat = "float32"
    """Format of the vectors, see `to_bytes`."""
    scales: np.ndarray | None = field(default=None, compare=False)
    """[dim] float32 scales of int8 vectors."""
    prompt_name: str | None = None
    """Prompt before each text, and before each window of it; None for the default prompt, empty for none."""

    name: ClassVar[str] = "embedding"
    settings_type: ClassVar[type[TaskSettings]] = EmbeddingSettings
    output_names: ClassVar[tuple[str, ...]] = ("sentence_embedding",)
    token_outputs: ClassVar[bool] = False

    def output_shape(self, *, hidden_size: int, vocab_size: int) -> tuple[int, ...]:
        return (hidden_size,)  # of the vectors, see `Manifest.hidden_size`

    def vector_size(self, hidden_size: int) -> int:
        return hidden_size

    def tei_type(self) -> dict[str, Any]:
        return {"embedding": {"pooling": "+".join(self.settings.poolings)}}

    def encode(self, examples: Sequence[str], *, truncate: bool = True) -> list[list[Features]]:
        prompt = self.settings.prompt(self.prompt_name)
        if not self.windows:
            length = self.settings.max_seq_length
            return [[item] for item in encode_texts(self.tokenizer, examples, length, truncate=truncate, prompt=prompt)]
        invalid: list[InvalidExample] = []
        tokens = tokenize_prompted(self.tokenizer, examples, prompt, "text", invalid)
        raise_if_invalid(invalid)
        if problem := self.window_problem():
            raise ValueError(problem)
        prompt_ids, capacity = self._prompt_ids(), self.tokenizer.single.capacity(self.settings.max_seq_length)
        windows = partial(prompted_windows, self.tokenizer, prompt_ids=prompt_ids, stride=self.window_stride)
        return [
            [Features(**self.tokenizer.assemble(ids)) for ids in windows(item.ids, capacity=capacity)]
            for item in tokens
        ]

    def window_problem(self) -> str:
        """Return why the prompt leaves too little room in a window; empty if it leaves half of it."""
        room, length = self.tokenizer.single.capacity(self.settings.max_seq_length), len(self._prompt_ids())
        if 2 * length <= room:
            return ""
        return f"the prompt has `{length}` tokens, more than half of a window of {room}; set `prompt_name` to ''"

    def _prompt_ids(self) -> np.ndarray:
        return prompt_ids_of(self.tokenizer, self.settings.prompt(self.prompt_name))

    def decode(self, example: str, features: Sequence[Features], outputs: Sequence[Outputs]) -> np.ndarray:
        vectors = np.array([output["sentence_embedding"] for output in outputs], dtype=np.float32)
        vector = vectors[0]
        if len(vectors) > 1:
            weights = self._num_text_tokens(features)
            vector = np.average(vectors, axis=0, weights=weights).astype(np.float32)
        vector = vector[: self.dimensions or None]
        if not self.settings.normalize:
            return vector
        # the number of np.linalg.norm, which releases the interpreter lock even for a short vector
        return vector / max(float(np.sqrt(vector @ vector)), 1e-12)

    def is_usable(self, array: np.ndarray) -> bool:
        return is_finite(array)

    def outputs_problem(self, outputs: Sequence[Outputs]) -> str:
        return ""  # the vector holds all outputs

    def prediction_problem(self, prediction: np.ndarray) -> str:
        if 0 < float(prediction @ prediction) < np.inf:  # then all numbers are finite; one step for the common case
            return ""
        if not is_finite(prediction):
            return NOT_FINITE
        is_zero = self.settings.normalize and not prediction.any()
        return "a vector of zeros, which cannot be normalised" if is_zero else ""

    def to_bytes(self, vector: np.ndarray) -> bytes:
        """Return a vector in the format."""
        return to_bytes(vector, self.format, self.scales)

    def _num_text_tokens(self, windows: Sequence[Features]) -> list[int]:
        """Return the number of tokens of the text in each window, without prompt and special tokens."""
        template = self.tokenizer.single
        num_prompt = num_common(self._prompt_ids(), windows[0].input_ids[len(template.ids[0]) :])
        return [len(window) - template.num_special - num_prompt for window in windows]
