"""Embeddings: one vector per text, pooled from the last hidden states of its tokens.

The network pools, so that only the vector leaves it. Poolings and layers are those of sentence-transformers. A text
beyond max_seq_length is cut or, on request, split into windows whose vectors are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import numpy as np

from tasks._encode import EMPTY, check_length, fit_text, raise_if_invalid, tokenize_texts
from tasks.base import NEWER, InvalidExample, Outputs, Task, TaskSettings
from tasks.features import Features
from tasks.small_vectors import VectorFormat, to_bytes
from tasks.tokenizer import Tokens
from tasks.windows import window_bounds

Pooling = Literal["cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
"""Poolings, named as in sentence-transformers."""
SimilarityName = Literal["cosine", "dot", "euclidean", "manhattan"]
Activation = Literal["identity", "tanh", "relu", "gelu", "sigmoid", "silu"]
NORMALIZE = "normalize"
"""Layer that divides each vector by its Euclidean norm."""
_DENSE = "dense "


def dense_layer(activation: Activation) -> str:
    """Return the name of a linear layer and its activation function, as in `EmbeddingSettings.layers`."""
    return f"{_DENSE}{activation}"


def activation_of(layer: str) -> Activation | None:
    """Return the activation function of a linear layer, from its name; None for `NORMALIZE`."""
    return layer.removeprefix(_DENSE) if layer.startswith(_DENSE) else None  # type: ignore[return-value]


_LAYERS = (NORMALIZE, *map(dense_layer, get_args(Activation)))


InputType = Literal["query", "document"]
"""Role of a text in a search, for models that treat both kinds differently."""
PROMPT_NAMES: Mapping[InputType, tuple[str, ...]] = {
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}


@dataclass(frozen=True)
class EmbeddingSettings(TaskSettings):
    """Length, pooling, layers after pooling, and normalization."""

    pooling: Pooling | tuple[Pooling, ...] = "cls"
    """`cls`: the last hidden state of the first token; `lasttoken`: of the last one; `mean`, `max`: over all tokens,
    specials included; `weightedmean`: the mean weighted by position, from 1; `mean_sqrt_len_tokens`: the sum divided by
    the square root of the number of tokens. Several: one after the other in a longer vector."""
    normalize: bool = False
    """Divide each vector by its Euclidean norm."""
    layers: tuple[str, ...] = field(default=(), metadata=NEWER)
    """Layers between pooling and `normalize`, in order: `dense tanh` (or another activation), `normalize`."""
    similarity_fn_name: SimilarityName | None = field(default=None, metadata=NEWER)
    """Similarity that the model was trained for; None if it is not known."""
    prompts: Mapping[str, str] = field(default_factory=dict, hash=False, metadata=NEWER)
    """Texts to put before inputs, by name, for models trained with them."""
    default_prompt_name: str | None = field(default=None, metadata=NEWER)
    """Prompt of texts for which none is named; None for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.pooling, str):  # a list of JSON
            object.__setattr__(self, "pooling", self.poolings[0] if len(self.poolings) == 1 else self.poolings)
        if not self.poolings:
            raise ValueError(f"no pooling (one or more of: {', '.join(get_args(Pooling))})")
        for what, values, known in (
            ("pooling", self.poolings, get_args(Pooling)),
            ("layer", self.layers, _LAYERS),
            ("similarity_fn_name", [self.similarity_fn_name or "cosine"], get_args(SimilarityName)),
        ):
            if unknown := next((value for value in values if value not in known), None):
                raise ValueError(f"unknown {what}: `{unknown}` (one of: {', '.join(known)})")
        if self.default_prompt_name is not None:
            self.prompt(self.default_prompt_name)

    def prompt(self, name: str | None) -> str:
        """Return the text of a prompt.

        Args:
            name: name of the prompt; None for the default prompt, empty for none.

        Raises:
            ValueError: if there is no prompt of this name.
        """
        name = self.default_prompt_name if name is None else name
        if name and name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise ValueError(f"unknown prompt: `{name}` (prompts of this model: {known})")
        return self.prompts[name] if name else ""

    def prompt_name_for(self, kind: InputType) -> str:
        """Return the name of the prompt for queries or documents; empty if the model has none.

        Names are those of sentence-transformers, which however prefers its own empty `document` to `passage` and
        `corpus`.
        """
        return next((name for name in PROMPT_NAMES[kind] if name in self.prompts), "")

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

    def encode(self, examples: Sequence[str], *, truncate: bool = True) -> list[list[Features]]:
        invalid: list[InvalidExample] = []
        max_length = self.settings.max_seq_length
        max_ids = None if self.windows else max_length
        stop_after = None if self.windows or truncate else max_length
        prompt = self.settings.prompt(self.prompt_name)
        texts = [prompt + text for text in examples] if prompt else examples
        tokens = tokenize_texts(self.tokenizer, texts, "text", invalid, max_ids=max_ids, stop_after=stop_after)
        if prompt:
            self._find_empty(prompt, tokens, invalid)
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
            if problem := self.window_problem():
                raise ValueError(problem)
            prompt_ids = self._prompt_ids()
            return [self._windows(item.ids, prompt_ids) for item in tokens]
        return [[fit_text(self.tokenizer, item, max_length)] for item in tokens]

    def _find_empty(self, prompt: str, tokens: Sequence[Tokens], invalid: list[InvalidExample]) -> None:
        """Add the texts that have no tokens besides those of the prompt to `invalid`."""
        (alone,) = self.tokenizer.tokenize([prompt], ids_only=True)
        known = {item.index for item in invalid}
        for index, item in enumerate(tokens):
            if index not in known and np.array_equal(item.ids, alone.ids):
                invalid.append(InvalidExample(index, "text", EMPTY))

    def window_problem(self) -> str:
        """Return why the prompt leaves too little room in a window; empty if it leaves half of it."""
        room, length = self.tokenizer.single.capacity(self.settings.max_seq_length), len(self._prompt_ids())
        if 2 * length <= room:
            return ""
        return f"the prompt has `{length}` tokens, more than half of a window of {room}; set `prompt_name` to ''"

    def _prompt_ids(self) -> np.ndarray:
        """Return the tokens of the prompt without spaces at its end, which the first token of a text may hold."""
        prompt = self.settings.prompt(self.prompt_name).rstrip()
        return self.tokenizer.tokenize([prompt], ids_only=True)[0].ids if prompt else _NO_IDS

    def _windows(self, ids: np.ndarray, prompt_ids: np.ndarray) -> list[Features]:
        """Return the windows of a text, each with the tokens of the prompt first.

        Args:
            ids: tokens of prompt and text.
        """
        num_prompt = _num_common(prompt_ids, ids)
        prompt, text = ids[:num_prompt], ids[num_prompt:]
        capacity = self.tokenizer.single.capacity(self.settings.max_seq_length) - num_prompt
        bounds = self.tokenizer.report_sequences(window_bounds(len(text), capacity, self.window_stride or capacity))
        return [Features(**self.tokenizer.assemble(_joined(prompt, text[start:end]))) for start, end in bounds]

    def decode(self, example: str, features: Sequence[Features], outputs: Sequence[Outputs]) -> np.ndarray:
        vectors = np.array([output["sentence_embedding"] for output in outputs], dtype=np.float32)
        vector = vectors[0] if len(vectors) == 1 else _weighted_mean(vectors, self._num_text_tokens(features))
        vector = vector[: self.dimensions or None]
        return vector / max(float(np.linalg.norm(vector)), 1e-12) if self.settings.normalize else vector

    def to_bytes(self, vector: np.ndarray) -> bytes:
        """Return a vector in the format."""
        return to_bytes(vector, self.format, self.scales)

    def _num_text_tokens(self, windows: Sequence[Features]) -> list[int]:
        """Return the number of tokens of the text in each window, without prompt and special tokens."""
        template = self.tokenizer.single
        num_prompt = _num_common(self._prompt_ids(), windows[0].input_ids[len(template.ids[0]) :])
        return [len(window) - template.num_special - num_prompt for window in windows]


_NO_IDS = np.zeros(0, np.int64)


def _num_common(first: np.ndarray, second: np.ndarray) -> int:
    """Return the number of first tokens that both sequences have in common."""
    length = min(len(first), len(second))
    differs = np.flatnonzero(first[:length] != second[:length])
    return int(differs[0]) if len(differs) else length


def _joined(prompt: np.ndarray, text: np.ndarray) -> np.ndarray:
    return np.concatenate([prompt, text]) if len(prompt) else text


def _weighted_mean(vectors: np.ndarray, num_tokens: Sequence[int]) -> np.ndarray:
    """Return the mean of [windows, hidden], weighted by the text tokens of each window."""
    return np.average(vectors, axis=0, weights=num_tokens).astype(np.float32)
