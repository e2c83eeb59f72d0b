"""Token ids of many sentences, for preparing a corpus: the tokenizer's ids without its offsets, words remembered.

BERT's tokenizer treats what stands between two spaces by itself: cleaning, lower-casing and accent stripping work on
single characters and their combining marks, and the pre-tokenizer splits at every space. So ids are joined from those
of the pieces, nine in ten of which were seen before.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import tokenizers

from tasks.tokenizer import Tokenizer

CACHE_SIZE = 2**17
"""Pieces; 40 MB."""


class SentenceEncoder:
    """The ids that `Tokenizer.tokenize` gives, three times as fast."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.id_type = np.dtype(np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32)
        self.unk_id = tokenizer.unk_id
        self._backend = tokenizer.backend
        self._splits_at_spaces = splits_at_spaces(tokenizer.backend)
        self._piece = lru_cache(CACHE_SIZE)(self._encode)

    def encode(self, sentences: Sequence[str]) -> list[np.ndarray]:
        """[length] ids of each sentence, uint16 for vocabularies up to 65,536 tokens, else uint32."""
        if self._splits_at_spaces:
            encoded = (b"".join(map(self._piece, sentence.split(" "))) for sentence in sentences)
            return [np.frombuffer(ids, self.id_type) for ids in encoded]
        encodings = self._backend.encode_batch(list(sentences), add_special_tokens=False)
        return [np.array(encoding.ids, self.id_type) for encoding in encodings]

    def _encode(self, piece: str) -> bytes:
        return np.array(self._backend.encode(piece, add_special_tokens=False).ids, self.id_type).tobytes()


def splits_at_spaces(backend: tokenizers.Tokenizer) -> bool:
    """Whether a tokenizer is BERT's, and none of the tokens that were added to it goes over a space."""
    config = json.loads(backend.to_str())
    kinds = [(config[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
    if kinds != ["BertNormalizer", "BertPreTokenizer", "WordPiece"]:
        return False
    contents = [token["content"] for token in config["added_tokens"]]
    contents += [backend.normalizer.normalize_str(content) for content in contents]
    return not any(char.isspace() for content in contents for char in content)
