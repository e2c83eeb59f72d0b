"""Text -> one shard, and what is to be known of it: the work that processes and machines share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tasks.files import sha256
from tasks.tokenizer import Tokenizer
from training.text.duplicates import hash_segments
from training.text.sentence_encoder import SentenceEncoder
from training.text.shards import Shard, write_shard


class Text(Protocol):
    """Consecutive documents: as a block of them, or as the place where they are read."""

    def documents(self) -> Iterator[list[str]]:
        """The documents, each a list of sentences."""


@dataclass(frozen=True, slots=True)
class ShardSummary:
    """What is to be known of a shard without opening it."""

    record: dict[str, Any]
    """File, counts and digest."""
    sentences: tuple[np.ndarray, np.ndarray]
    """Hashes and lengths, each [sentences]."""
    documents: tuple[np.ndarray, np.ndarray]
    """Hashes and lengths, each [documents]."""
    num_unknown: int
    """Tokens that are [UNK]."""
    num_file_bytes: int
    """What was read for it."""


def make_shard(path: Path, chunk: Sequence[Text], num_file_bytes: int, tokenizer_dir: str) -> ShardSummary:
    """Write one shard, and look at it.

    Args:
        path: of the shard.
        chunk: its text; nothing, where the shard is there already.
        num_file_bytes: what was read for it.

    Raises:
        ValueError: naming the file and the line that is not as it should be.
    """
    encoder = _encoder(tokenizer_dir)
    if chunk:
        write_shard(path, (document for text in chunk for document in text.documents()), encoder)
    return _summarise(path, num_file_bytes, encoder.unk_id)


@cache
def _encoder(tokenizer_dir: str) -> SentenceEncoder:
    return SentenceEncoder(Tokenizer.load(tokenizer_dir))  # one a process, for what it remembers


def _summarise(path: Path, num_file_bytes: int, unk_id: int) -> ShardSummary:
    shard = Shard(path)
    sentences, documents = (
        (hash_segments(shard.ids, ends), np.diff(ends))
        for ends in (shard.sentence_ends, shard.sentence_ends[shard.document_ends])
    )
    record = {"file": path.name} | shard.counts() | {"sha256": sha256(path)}
    return ShardSummary(record, sentences, documents, int((shard.ids == unk_id).sum()), num_file_bytes)
