"""Make one shard from text and summarize it: the unit of work that processes and machines share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tasks.bundle.files import sha256
from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import TOKENIZER_FILE
from training.text.documents import Block
from training.text.duplicates import hash_segments
from training.text.sentence_encoder import SentenceEncoder, WordEncoder
from training.text.shards import Shard, write_shard


@dataclass(frozen=True, slots=True)
class ShardStatistics:
    """Counts and hashes of a shard."""

    record: dict[str, Any]
    """Entry of the shard in corpus.json: file, counts and digest."""
    sentences: tuple[np.ndarray, np.ndarray]
    """Hashes and lengths of sentences, each [sentences]."""
    documents: tuple[np.ndarray, np.ndarray]
    """Hashes and lengths of documents, each [documents]."""
    num_unknown: int
    """Number of [UNK] tokens."""
    num_file_bytes: int
    """Bytes read from text files."""
    word_counts: dict[str, int]
    """Counts with a segmenter: `num_words`, `num_seams` (pairs of adjacent tokens in its scripts), and `num_boundaries`
    (seams at which a word begins)."""


def make_shard(
    path: Path, chunk: Sequence[Block], num_file_bytes: int, tokenizer_dir: str, words: str | None = None
) -> ShardStatistics:
    """Write one shard and summarize it.

    Args:
        path: file of the shard.
        chunk: text of the shard; empty if the shard exists.
        num_file_bytes: bytes read from text files.
        words: segmenter, with its version as from `name_with_version`.

    Raises:
        ValueError: naming the file and the malformed line.
        ChildProcessError: if the segmenter is not installed.
    """
    encoder = _encoder(tokenizer_dir, words, sha256(Path(tokenizer_dir) / TOKENIZER_FILE))
    if chunk:
        write_shard(path, (document for text in chunk for document in text.documents()), encoder)
    shard = Shard(path)
    sentences, documents = (
        (hash_segments(shard.ids, ends), np.diff(ends))
        for ends in (shard.sentence_ends, shard.sentence_ends[shard.document_ends])
    )
    return ShardStatistics(
        record={"file": path.name} | shard.counts() | {"sha256": sha256(path)},
        sentences=sentences,
        documents=documents,
        num_unknown=int((shard.ids == encoder.unk_id).sum()),
        num_file_bytes=num_file_bytes,
        word_counts=_count_words(shard, encoder) if isinstance(encoder, WordEncoder) else {},
    )


@lru_cache(maxsize=1)  # once a process, as it has a cache of words
def _encoder(tokenizer_dir: str, words: str | None, digest: str) -> SentenceEncoder:
    tokenizer = Tokenizer.load(tokenizer_dir)
    return WordEncoder(tokenizer, words) if words else SentenceEncoder(tokenizer)


def _count_words(shard: Shard, encoder: WordEncoder) -> dict[str, int]:
    begins, is_seam = ~shard.continues_word(), encoder.find_seams(shard.ids)
    is_seam[shard.sentence_ends[:-1]] = False
    counts = {"num_words": begins, "num_seams": is_seam, "num_boundaries": begins & is_seam}
    return {name: int(found.sum()) for name, found in counts.items()}
