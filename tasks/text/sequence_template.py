"""Template of a tokenizer: the special tokens around a text and around a pair of texts, and the token types.

`[CLS] a [SEP] b [SEP]` with types 0 and 1 in BERT, `<s> a </s></s> b </s>` with type 0 in RoBERTa. The template comes
from the tokenizer's own post-processor.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers

_SAMPLES = ("a", "1", "一", "م", "a a")
"""Texts; every tokenizer turns at least two of them into different tokens."""
_ZEROS = np.zeros(4096, np.int64)
"""Token types of sequences without other types: one shared, read-only array."""
_ZEROS.setflags(write=False)


@dataclass(frozen=True)
class SequenceTemplate:
    """Special tokens before each text and after the last one, with token types."""

    ids: tuple[np.ndarray, ...]
    """Special tokens before the first text, before each further one, and after the last: int64 arrays."""
    type_ids: tuple[np.ndarray, ...]
    """Token types of `ids`."""
    text_types: tuple[int, ...]
    """Token type of each text."""

    @functools.cached_property
    def has_only_type_0(self) -> bool:
        """True if all token types are 0."""
        return not any(self.text_types) and not any(types.any() for types in self.type_ids)

    @functools.cached_property
    def num_special(self) -> int:
        """Number of special tokens in a sequence."""
        return sum(map(len, self.ids))

    def length(self, *texts: Sized) -> int:
        """Return the number of tokens of a sequence of texts."""
        return self.num_special + sum(map(len, texts))

    def capacity(self, max_seq_length: int) -> int:
        """Return the number of tokens of texts that fit into a sequence."""
        return max_seq_length - self.num_special

    def start(self, *texts: Sized) -> int:
        """Return the position of the first token of the text that follows `texts` in a sequence."""
        return sum(map(len, self.ids[: len(texts) + 1])) + sum(map(len, texts))

    def special_positions(self, *texts: Sized) -> np.ndarray:
        """Return the positions of the special tokens of a sequence, ascending, [num_special] int64."""
        ends = [self.start(*texts[:count]) + len(text) for count, text in enumerate(texts)]
        spans = zip([0, *ends], self.ids, strict=True)
        return np.concatenate([np.arange(first, first + len(ids)) for first, ids in spans])

    def assemble(self, *texts: np.ndarray) -> dict[str, Any]:
        """Assemble a sequence.

        Args:
            texts: token ids of each text, int64.

        Returns:
            The fields of `Features`: `input_ids` and `token_type_ids`, each [length] int64. Token types that are all 0
            are read-only.
        """
        parts = [self.ids[0]]
        for text, following in zip(texts, self.ids[1:], strict=True):
            parts += [text, following]
        input_ids = np.concatenate(parts).astype(np.int64, copy=False)
        if self.has_only_type_0 and len(input_ids) <= len(_ZEROS):
            return {"input_ids": input_ids, "token_type_ids": _ZEROS[: len(input_ids)]}
        types = [self.type_ids[0]]
        for text, text_type, following in zip(texts, self.text_types, self.type_ids[1:], strict=True):
            types += [np.full(len(text), text_type, np.int64), following]
        return {"input_ids": input_ids, "token_type_ids": np.concatenate(types)}


def read_templates(backend: tokenizers.Tokenizer, source: str) -> tuple[SequenceTemplate, SequenceTemplate]:
    """Return the templates of a single text and of a pair. Without a post-processor these are BERT's.

    Raises:
        ValueError: if the post-processor changes the order of the texts, repeats one, or adds ids without tokens.
    """
    encoded = [backend.encode(text, add_special_tokens=False) for text in _SAMPLES]
    samples = list({tuple(item.ids): item for item in encoded if item.ids}.values())[:2]
    if len(samples) < 2:
        raise ValueError(f"the tokenizer of `{source}` has no tokens for letters, digits and punctuation")
    if lacks_template(backend):
        backend = tokenizers.Tokenizer(backend.model)
        backend.post_processor = bert_template(backend)
    single, pair = backend.post_process(samples[0]), backend.post_process(samples[0], samples[1])
    if unknown := next((index for index in (*single.ids, *pair.ids) if backend.id_to_token(index) is None), None):
        raise ValueError(f"the post-processor of `{source}` adds the id `{unknown}`, which is no token")
    texts = [np.array(item.ids) for item in samples]
    return _template(single, texts[:1], source), _template(pair, texts, source)


def lacks_template(backend: tokenizers.Tokenizer) -> bool:
    """Return whether a tokenizer has BERT's special tokens, but nothing that adds them."""
    has_bert_tokens = all(backend.token_to_id(token) is not None for token in ("[CLS]", "[SEP]"))
    return backend.post_processor is None and has_bert_tokens


def bert_template(backend: tokenizers.Tokenizer) -> tokenizers.processors.PostProcessor:
    """Return BERT's post-processor: `[CLS] a [SEP] b [SEP]`, with types 0 and 1."""
    return tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )


def _template(encoding: tokenizers.Encoding, texts: Sequence[np.ndarray], source: str) -> SequenceTemplate:
    """Read the template from an encoding of known texts."""
    is_text = ~np.array(encoding.special_tokens_mask, bool)
    ids, types = np.array(encoding.ids), np.array(encoding.type_ids)
    if not np.array_equal(ids[is_text], np.concatenate(texts)):
        raise ValueError(f"the post-processor of `{source}` does not keep the texts in order, which is not supported")
    places = np.flatnonzero(is_text)
    starts = places[np.cumsum([0, *map(len, texts[:-1])])]
    ends = [start + len(text) for start, text in zip(starts, texts, strict=True)]
    gaps = [slice(first, last) for first, last in zip([0, *ends], [*starts, len(ids)], strict=True)]
    if any(is_text[gap].any() for gap in gaps):
        raise ValueError(f"the post-processor of `{source}` puts special tokens into a text, which is not supported")
    return SequenceTemplate(
        ids=tuple(ids[gap].astype(np.int64) for gap in gaps),
        type_ids=tuple(types[gap].astype(np.int64) for gap in gaps),
        text_types=tuple(int(types[start]) for start in starts),
    )
