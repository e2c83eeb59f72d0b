"""Text -> one shard, and what is to be known of it: the work that processes and machines share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tasks.files import sha256
from tasks.tokenizer import Tokenizer
from training.text.duplicates import hash_segments
from training.text.sentence_encoder import SentenceEncoder, WordEncoder
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
    word_counts: dict[str, int] = field(default_factory=dict)
    """Where words were asked for: how many there are, the seams between tokens where the segmenter decides, and at how
    many of them a word begins."""


def make_shard(
    path: Path, chunk: Sequence[Text], num_file_bytes: int, tokenizer_dir: str, words: str | None = None
) -> ShardSummary:
    """Write one shard, and look at it.

    Args:
        path: of the shard.
        chunk: its text; nothing, where the shard is there already.
        num_file_bytes: what was read for it.
        words: segmenter, as `name_with_version` names it.

    Raises:
        ValueError: naming the file and the line that is not as it should be.
        ChildProcessError: when the segmenter is not here.
    """
    encoder = _encoder(tokenizer_dir, words)
    if chunk:
        write_shard(path, (document for text in chunk for document in text.documents()), encoder)
    if isinstance(encoder, WordEncoder):
        summary = _summarise(path, num_file_bytes, encoder.sentences.unk_id)
        return replace(summary, word_counts=_count_words(path, encoder))
    return _summarise(path, num_file_bytes, encoder.unk_id)


@cache
def _encoder(tokenizer_dir: str, words: str | None) -> SentenceEncoder | WordEncoder:
    """One a process, for what it remembers."""
    tokenizer = Tokenizer.load(tokenizer_dir)
    return WordEncoder(tokenizer, words) if words else SentenceEncoder(tokenizer)


def _count_words(path: Path, encoder: WordEncoder) -> dict[str, int]:
    shard = Shard(path)
    begins, is_letter = ~shard.continues_word(), encoder.is_letter[shard.ids]
    is_seam = np.append(False, is_letter[:-1] & is_letter[1:])[: len(begins)]
    is_seam[shard.sentence_ends[:-1]] = False
    counts = {"num_words": begins, "num_seams": is_seam, "num_boundaries": begins & is_seam}
    return {name: int(found.sum()) for name, found in counts.items()}


def _summarise(path: Path, num_file_bytes: int, unk_id: int) -> ShardSummary:
    shard = Shard(path)
    sentences, documents = (
        (hash_segments(shard.ids, ends), np.diff(ends))
        for ends in (shard.sentence_ends, shard.sentence_ends[shard.document_ends])
    )
    record = {"file": path.name} | shard.counts() | {"sha256": sha256(path)}
    return ShardSummary(record, sentences, documents, int((shard.ids == unk_id).sum()), num_file_bytes)
