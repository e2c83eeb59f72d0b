"""Token embeddings: a vector for each token of a text (ColBERT).

The network projects the last hidden state of each token, and divides it by its length. Queries and documents begin with
different marker tokens; documents leave out the vectors of some tokens, such as punctuation, and queries may end with
mask tokens, whose vectors count like those of words (Khattab and Zaharia 2020; settings are named as in PyLate).
Without layers and markers, the vectors are the last hidden states of any encoder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np

from tasks._encode import num_common, prompt_ids_of, prompted_windows, raise_if_invalid, tokenize_fitting
from tasks.base import MAX_SEQ_LENGTH, InvalidExample, Outputs, Task, is_finite
from tasks.embedding import Embedding, Layer
from tasks.features import Features
from tasks.prompts import PromptSettings
from tasks.schema import Bounds
from tasks.small_vectors import VectorFormat
from tasks.text.tokenizer import Tokens

TOKEN_VECTORS = "token_embeddings"
"""Output of the network."""
Length = Annotated[int, Bounds(least=0, most=MAX_SEQ_LENGTH)]
_MIN_LENGTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFeatures(Features):
    """One sequence, and which of its tokens have a vector."""

    kept: np.ndarray
    """[vectors] int64, positions of these tokens."""
    offsets: np.ndarray | None = None
    """[vectors, 2] int64, places of these tokens in the text (start, end) in code points; (0, 0) for tokens that are
    none of the text. None if nobody asked."""


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """Vectors of a text."""

    vectors: np.ndarray
    """[vectors, dim] float32"""
    offsets: np.ndarray | None = None
    """Offsets as in `TokenFeatures`."""


@dataclass(frozen=True)
class TokenEmbeddingSettings(PromptSettings):
    """Lengths, prompts, layers over each token, and how queries differ from documents."""

    layers: tuple[Layer, ...] = ()
    """Layers over the last hidden state of each token, in order: `dense identity` (or another activation)."""
    normalize: bool = False
    """Divide each vector by its Euclidean norm."""
    query_length: Length = 0
    """Longest query in tokens, special ones and marker included; 0 for max_seq_length."""
    document_length: Length = 0
    """Longest document, or window of a document that is ranked; 0 for max_seq_length."""
    query_prefix: str = ""
    """Marker: token behind the first special token of queries; empty for none."""
    document_prefix: str = ""
    """Marker of documents."""
    skiplist_words: tuple[str, ...] = ()
    """Tokens whose vectors documents leave out. The network reads them."""
    do_query_expansion: bool = False
    """Fill queries with mask tokens up to query_length."""
    attend_to_expansion_tokens: bool = False
    """Tokens of the query attend to these mask tokens. They attend to the query in any case."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("query_length", "document_length"):
            if (length := getattr(self, name)) and not _MIN_LENGTH <= length <= self.max_seq_length:
                longest = f"{_MIN_LENGTH} to max_seq_length, {self.max_seq_length}"
                raise ValueError(f"{name} must be 0, or {longest}: `{length}`")

    def prefix(self, *, is_query: bool) -> str:
        """Return the marker of queries or documents."""
        return self.query_prefix if is_query else self.document_prefix

    def length(self, *, is_query: bool) -> int:
        """Return the longest sequence of a query or document, in tokens."""
        return (self.query_length if is_query else self.document_length) or self.max_seq_length


@dataclass(frozen=True)
class TokenEmbedding(Task[str, TokenFeatures, TokenVectors, TokenEmbeddingSettings]):
    """Predicts vectors for the tokens of texts."""

    is_query: bool = False
    """Texts are queries, and not documents."""
    prompt_name: str | None = None
    """Prompt before each text; None for the default prompt, empty for none."""
    with_offsets: bool = False
    """Return the place of each token in its text."""
    dim: int = 0
    """Size of the vectors in a reply."""
    format: VectorFormat = "float32"
    """Format of the vectors in a reply: float32 or float16."""

    name: ClassVar[str] = "token-embedding"
    network: ClassVar[str] = Embedding.name
    settings_type: ClassVar[type[TokenEmbeddingSettings]] = TokenEmbeddingSettings
    output_names: ClassVar[tuple[str, ...]] = (TOKEN_VECTORS,)
    token_outputs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settings, template = self.settings, self.tokenizer.single
        for key in ("query_prefix", "document_prefix"):
            if (token := getattr(settings, key)) and self.tokenizer.token_id(token) is None:
                raise ValueError(f"{key} `{token}` is no token of the tokenizer; add it, and train the model again")
        if (settings.query_prefix or settings.document_prefix) and len(template.ids[0]) != 1:
            raise ValueError(f"markers need one special token before a text, as [CLS]: `{len(template.ids[0])}`")
        if settings.skiplist_words and not template.num_special:
            raise ValueError("skiplist_words need a tokenizer with special tokens, so that a document keeps a vector")
        if settings.do_query_expansion and self.tokenizer.mask_id is None:
            raise ValueError("the tokenizer has no mask token, so do_query_expansion must be false")

    def output_shape(self, *, hidden_size: int, vocab_size: int) -> tuple[int, ...]:
        return (hidden_size,)  # of the vectors, see `Manifest.hidden_size`

    def vector_size(self, hidden_size: int) -> int:
        return hidden_size

    def tei_type(self) -> dict[str, Any]:
        return {"embedding": {"pooling": "none"}}

    def is_usable(self, array: np.ndarray) -> bool:
        return is_finite(array)

    @property
    def prompt(self) -> str:
        """Prompt before each text."""
        return self.settings.prompt(self.prompt_name)

    @property
    def capacity(self) -> int:
        """Most tokens of a text in a sequence, with those of the prompt."""
        return self.tokenizer.single.capacity(self._length) - len(self._marker)

    @property
    def _length(self) -> int:
        return self.settings.length(is_query=self.is_query)

    @cached_property
    def _marker(self) -> list[int]:
        prefix = self.settings.prefix(is_query=self.is_query)
        token_id = self.tokenizer.token_id(prefix) if prefix else None
        return [] if token_id is None else [token_id]

    def encode(self, examples: Sequence[str], *, truncate: bool = True) -> list[list[TokenFeatures]]:
        invalid: list[InvalidExample] = []
        tokens = self.tokenize(examples, "text", invalid, truncate=truncate)
        raise_if_invalid(invalid)
        return [[self.sequence(item)] for item in tokens]

    def tokenize(
        self, texts: Sequence[str], field: str, invalid: list[InvalidExample], *, truncate: bool
    ) -> list[Tokens]:
        """Tokenize texts that must fit into a sequence, or are cut.

        Args:
            field: name of the texts in `invalid`.
            invalid: receives texts that are empty, not UTF-8 or, without `truncate`, too long.
        """
        return tokenize_fitting(
            self.tokenizer,
            texts,
            field,
            self._length,
            invalid,
            truncate=truncate,
            num_more=self.tokenizer.single.num_special + len(self._marker),
            prompt=self.prompt,
            ids_only=not self.with_offsets,
        )

    def windows(self, tokens: Tokens) -> Iterator[dict[str, Any]]:
        """Yield the fields of TokenFeatures for each window of a document; a quarter of each is part of the next."""
        prompt_ids = prompt_ids_of(self.tokenizer, self.prompt)
        room = self.capacity - num_common(prompt_ids, tokens.ids)
        stride = room - room // 4
        windows = prompted_windows(
            self.tokenizer, tokens.ids, prompt_ids=prompt_ids, capacity=self.capacity, stride=stride
        )
        return map(self.assemble, windows)

    def sequence(self, tokens: Tokens) -> TokenFeatures:
        """Return the sequence of a text, cut at its end."""
        ids = tokens.ids[: self.capacity]
        arrays = self.assemble(ids)
        if not self.with_offsets:
            return TokenFeatures(**arrays, num_truncated=len(tokens) - len(ids))
        start = len(self.tokenizer.single.ids[0]) + len(self._marker)
        offsets = np.zeros((len(arrays["input_ids"]), 2), np.int64)
        offsets[start : start + len(ids)] = np.maximum(tokens.offsets[: len(ids)] - len(self.prompt), 0)
        return TokenFeatures(**arrays, num_truncated=len(tokens) - len(ids), offsets=offsets[arrays["kept"]])

    def assemble(self, ids: np.ndarray) -> dict[str, Any]:
        """Return the fields of TokenFeatures for the tokens of a text that fit."""
        arrays = self.tokenizer.assemble(np.concatenate([np.array(self._marker, np.int64), ids]))
        if not self.is_query:
            return arrays | {"kept": np.flatnonzero(~np.isin(arrays["input_ids"], self._skipped_ids))}
        count = self._length - len(arrays["input_ids"]) if self.settings.do_query_expansion else 0
        if count:
            masks, types = np.full(count, self.tokenizer.mask_id), np.zeros(count, np.int64)
            arrays = {
                "input_ids": np.concatenate([arrays["input_ids"], masks]),
                "token_type_ids": np.concatenate([arrays["token_type_ids"], types]),
                "num_unattended": 0 if self.settings.attend_to_expansion_tokens else count,
            }
        return arrays | {"kept": np.arange(len(arrays["input_ids"]))}

    @cached_property
    def _skipped_ids(self) -> list[int]:
        """Ids of the skip-list. A word that is no token stands for unknown ones, as in PyLate."""
        found = map(self.tokenizer.token_id, self.settings.skiplist_words)
        return [self.tokenizer.unk_id if token_id is None else token_id for token_id in found]

    def decode(self, example: str, features: Sequence[TokenFeatures], outputs: Sequence[Outputs]) -> TokenVectors:
        (item,), (output,) = features, outputs
        return TokenVectors(output[TOKEN_VECTORS][item.kept].astype(np.float32), item.offsets)
