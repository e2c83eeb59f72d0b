"""A prepared corpus: token ids in memory-mapped shards. `training.corpus` writes it."""

from __future__ import annotations

import itertools
import json
from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np

from tasks.bundle.files import sha256
from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import TOKENIZER_FILE
from training.command_line.progress_bar import ProgressBar
from training.text.shards import COUNTS, Shard

CORPUS_FILE = "corpus.json"
SAMPLE_TOKENS = 100_000
"""Number of tokens that `Corpus.sample_tokens` returns."""


class Corpus:
    """A prepared corpus, memory-mapped.

    Opening it checks the digest of the tokenizer and the sizes of the shards; `verify` checks the shards' digests.

    Raises:
        ValueError: naming a file that is missing or damaged.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        try:
            self.info: dict[str, Any] = json.loads((self.directory / CORPUS_FILE).read_text(encoding="utf-8"))
            records = [record for record in self.info["shards"] if record["num_documents"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"not a corpus: `{directory}` has no readable {CORPUS_FILE}; run training.corpus"
            ) from error
        if not records:
            raise ValueError(f"no documents in corpus `{directory}`")
        self.tokenizer = Tokenizer.load(self.directory)
        if self.info.get("tokenizer_sha256") != sha256(self.directory / TOKENIZER_FILE):
            raise ValueError(_damaged(self.directory / TOKENIZER_FILE))
        self.has_words = bool(self.info.get("words"))
        """True if the corpus has word boundaries, in addition to the tokenizer's `##`."""
        self._shards = [Shard(self.directory / record["file"]) for record in records]
        for shard, record in zip(self._shards, records, strict=True):
            counts = {key: record.get(key) for key in COUNTS}
            if shard.has_words != self.has_words or shard.counts() != counts:
                raise ValueError(_damaged(self.directory / record["file"]))
        self._first_document = [0, *itertools.accumulate(shard.counts()["num_documents"] for shard in self._shards)]
        self.num_documents = self._first_document[-1]
        self.digest = sha256(self.directory / CORPUS_FILE)

    def sentence_ends(self, document: int) -> np.ndarray:
        """Return the begin of a document's first sentence and the end of each, in tokens of the shard."""
        shard, local = self._locate(document)
        return shard.sentence_ends[shard.document_ends[local] : shard.document_ends[local + 1] + 1]

    def num_sentences(self, document: int) -> int:
        """Return the number of sentences of a document."""
        return len(self.sentence_ends(document)) - 1

    def tokens(self, document: int, first: int, last: int) -> np.ndarray:
        """Return the ids of sentences [first, last) of a document, concatenated."""
        shard, local = self._locate(document)
        start = shard.document_ends[local]
        return shard.ids[shard.sentence_ends[start + first] : shard.sentence_ends[start + last]]

    def continues_word(self, document: int, first: int, last: int) -> np.ndarray:
        """Return bool [tokens]: True for `tokens` that continue a word; by the tokenizer if the corpus has no words."""
        shard, local = self._locate(document)
        start = shard.document_ends[local]
        ends = shard.sentence_ends[start + first : start + last + 1]
        if self.has_words:
            return shard.continues_word(ends[0], ends[-1])
        continues = self.tokenizer.continues_word(shard.ids[ends[0] : ends[-1]])
        continues[ends[:-1] - ends[0]] = False
        return continues

    def sample_tokens(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the first ids of the corpus, and which of them continue a word."""
        shard = self._shards[0]
        ids = shard.ids[:SAMPLE_TOKENS]
        return ids, shard.continues_word(0, len(ids)) if self.has_words else self.tokenizer.continues_word(ids)

    def token_offsets(self, documents: np.ndarray, sentences: np.ndarray) -> np.ndarray:
        """Return where sentences begin, int64 [n], in tokens of the corpus; past the last, the document's end."""
        shard_of = np.searchsorted(self._first_document, documents, side="right") - 1
        order = np.argsort(shard_of, kind="stable")
        bounds = np.searchsorted(shard_of[order], np.arange(len(self._shards) + 1))
        offsets, num_before = np.empty(len(documents), np.int64), 0
        for number, shard in enumerate(self._shards):
            rows = order[bounds[number] : bounds[number + 1]]
            local = documents[rows] - self._first_document[number]
            ends = shard.sentence_ends[shard.document_ends[local] + sentences[rows]]
            offsets[rows] = num_before + ends.astype(np.int64)
            num_before += len(shard.ids)
        return offsets

    def num_single(self) -> int:
        """Return the number of documents with a single sentence."""
        return sum(int((np.diff(shard.document_ends) == 1).sum()) for shard in self._shards)

    def token_counts(self) -> np.ndarray:
        """Return the count of each token, [vocabulary]."""
        size = self.tokenizer.vocab_size
        return sum((np.bincount(shard.ids, minlength=size) for shard in self._shards), np.zeros(size, np.int64))

    def verify(self) -> None:
        """Compare the digest of every shard with `corpus.json`.

        Raises:
            ValueError: naming a damaged shard.
        """
        with ProgressBar("verify", unit="shard", total=len(self.info["shards"])) as bar:
            for record in self.info["shards"]:
                if sha256(self.directory / record["file"]) != record["sha256"]:
                    raise ValueError(_damaged(self.directory / record["file"]))
                bar.update(1)

    def _locate(self, document: int) -> tuple[Shard, int]:
        number = bisect_right(self._first_document, document) - 1
        return self._shards[number], document - self._first_document[number]


def _damaged(path: Path) -> str:
    return f"`{path}` does not match {CORPUS_FILE}; prepare the corpus again"
