"""A corpus as token ids in memory-mapped Arrow shards.

    python -m training.corpus --data wiki-00.txt.xz books/ --tokenizer build/tokenizer --out build/corpus

Preparation is a pure function of a chunk of documents, so that chunks run in parallel; a shard holds one column,
`document: list<list<uint16|uint32>>`, a document being a list of sentences of WordPiece ids. The directory also holds
the tokenizer and `corpus.json` with counts and digests.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.files import atomic_directory, sha256
from tasks.tokenizer import TOKENIZER_FILE, TOKENIZER_FILES, Tokenizer
from training.command import command, parse
from training.documents import find_files, read_documents
from training.progress import Progress

CORPUS_FILE = "corpus.json"


@dataclass(frozen=True, kw_only=True)
class CorpusRecipe:
    """Turn text into the token shards that pretraining reads."""

    data: tuple[Path, ...]
    """Text, JSONL or Parquet files, or directories of them."""
    tokenizer: Path
    """Directory with tokenizer.json (of `training.vocab`, or any checkpoint)."""
    out: Path
    """Directory to write."""
    chunk_chars: int = 4_000_000
    """Characters of text in a shard."""
    num_workers: int = 0
    """Processes; 0 for one a core."""
    replace: bool = False
    """Overwrite the directory."""

    def __post_init__(self) -> None:
        if self.chunk_chars < 1 or self.num_workers < 0:
            raise ValueError("chunk_chars must be at least 1, num_workers not negative")


def prepare_corpus(recipe: CorpusRecipe) -> dict[str, Any]:
    """Tokenise text into shards.

    Returns:
        What `corpus.json` holds: counts and digests.

    Raises:
        ValueError: for data or a tokenizer that cannot be read.
    """
    files = find_files(recipe.data)
    tokenizer_dir = str(recipe.tokenizer)
    vocab_size = Tokenizer.load(tokenizer_dir).vocab_size
    workers = recipe.num_workers or len(os.sched_getaffinity(0))
    shards: list[dict[str, Any]] = []
    with (
        atomic_directory(recipe.out, replace=recipe.replace) as directory,
        ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool,
        Progress("corpus", unit="token") as bar,
    ):
        pending: deque[Future[dict[str, Any]]] = deque()
        for number, chunk in enumerate(_chunks(files, recipe.chunk_chars)):
            path = directory / f"shard-{number:05d}.arrow"
            pending.append(pool.submit(write_shard, path, chunk, tokenizer_dir))
            while len(pending) > 2 * workers:  # bounds the text held in memory
                shards.append(_finish(pending.popleft(), bar))
        while pending:
            shards.append(_finish(pending.popleft(), bar))
        totals = {key: sum(shard[key] for shard in shards) for key in ("num_documents", "num_sentences", "num_tokens")}
        if not totals["num_tokens"]:
            raise ValueError(f"no text in {', '.join(f'`{path}`' for path in files)}")
        info = totals | {"vocab_size": vocab_size, "shards": shards}
        info["sources"] = {path.name: sha256(path) for path in files}
        info["tokenizer_sha256"] = _copy_tokenizer(recipe.tokenizer, directory)
        (directory / CORPUS_FILE).write_text(json.dumps(info, indent=2) + "\n", encoding="utf-8")
    return info


def write_shard(path: Path, documents: list[list[str]], tokenizer_dir: str) -> dict[str, Any]:
    """Tokenise documents and write one shard; documents and sentences without a token are left out.

    Returns:
        Counts and digest of the shard.
    """
    tokenizer = Tokenizer.load(tokenizer_dir)
    id_type = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    sentences = [sentence for document in documents for sentence in document]
    encoded = iter(tokenizer.tokenize(sentences))
    ids: list[np.ndarray] = []
    sentence_ends, document_ends = [0], [0]
    for document in documents:
        for _ in document:
            tokens = next(encoded)
            if len(tokens):
                ids.append(tokens.ids.astype(id_type))
                sentence_ends.append(sentence_ends[-1] + len(tokens))
        if len(sentence_ends) - 1 > document_ends[-1]:
            document_ends.append(len(sentence_ends) - 1)
    tokens_array = pa.array(np.concatenate(ids) if ids else np.zeros(0, id_type))
    sentence_array = pa.ListArray.from_arrays(pa.array(sentence_ends, pa.int32()), tokens_array)
    column = pa.ListArray.from_arrays(pa.array(document_ends, pa.int32()), sentence_array)
    batch = pa.record_batch([column], names=["document"])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    return {
        "file": path.name,
        "num_documents": len(document_ends) - 1,
        "num_sentences": len(sentence_ends) - 1,
        "num_tokens": sentence_ends[-1],
        "sha256": sha256(path),
    }


class Corpus:
    """A prepared corpus, memory-mapped: nothing is read before it is used."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        try:
            self.info = json.loads((self.directory / CORPUS_FILE).read_text(encoding="utf-8"))
            names = [item["file"] for item in self.info["shards"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"not a corpus: `{directory}` has no readable {CORPUS_FILE}; run training.corpus"
            ) from error
        self.tokenizer = Tokenizer.load(self.directory)
        shards = [_Shard(self.directory / name) for name in names]
        self._shards = [shard for shard in shards if shard.num_documents]
        if not self._shards:
            raise ValueError(f"no documents in corpus `{directory}`")
        self._first_document = np.cumsum([0] + [shard.num_documents for shard in self._shards])
        self.num_documents = int(self._first_document[-1])
        self.digest = sha256(self.directory / CORPUS_FILE)

    def sentence_lengths(self, document: int) -> np.ndarray:
        """[sentences] number of tokens of each sentence of a document."""
        shard, local = self._locate(document)
        first, last = shard.document_ends[local], shard.document_ends[local + 1]
        return np.diff(shard.sentence_ends[first : last + 1])

    def num_sentences(self, document: int) -> int:
        """Number of sentences of a document."""
        shard, local = self._locate(document)
        return int(shard.document_ends[local + 1] - shard.document_ends[local])

    def tokens(self, document: int, first: int, last: int) -> np.ndarray:
        """The ids of sentences first to last (exclusive) of a document, joined."""
        shard, local = self._locate(document)
        start = shard.document_ends[local]
        return shard.ids[shard.sentence_ends[start + first] : shard.sentence_ends[start + last]]

    def token_counts(self) -> np.ndarray:
        """[vocabulary] how often each token occurs."""
        size = self.info["vocab_size"]
        return sum((np.bincount(shard.ids, minlength=size) for shard in self._shards), np.zeros(size, np.int64))

    def _locate(self, document: int) -> tuple[_Shard, int]:
        number = int(np.searchsorted(self._first_document, document, side="right")) - 1
        return self._shards[number], document - int(self._first_document[number])


class _Shard:
    def __init__(self, path: Path) -> None:
        try:
            column = pa.ipc.open_file(pa.memory_map(str(path))).read_all()["document"].combine_chunks()
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"cannot read shard `{path}`: {error}; prepare the corpus again") from error
        self.document_ends = column.offsets.to_numpy()
        self.sentence_ends = column.values.offsets.to_numpy()
        self.ids = column.values.values.to_numpy()
        self.num_documents = len(column)


def _chunks(files: list[Path], chunk_chars: int) -> Iterator[list[list[str]]]:
    chunk: list[list[str]] = []
    size = 0
    for path in files:
        for document in read_documents(path):
            chunk.append(document)
            size += sum(map(len, document))
            if size >= chunk_chars:
                yield chunk
                chunk, size = [], 0
    if chunk:
        yield chunk


def _finish(future: Future[dict[str, Any]], bar: Progress) -> dict[str, Any]:
    shard = future.result()
    bar.update(shard["num_tokens"])
    return shard


def _copy_tokenizer(source: Path, directory: Path) -> str:
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, directory / name)
    if not (directory / TOKENIZER_FILE).is_file():
        Tokenizer.load(source).backend.save(str(directory / TOKENIZER_FILE))
    return sha256(directory / TOKENIZER_FILE)


@command
def main() -> None:
    """Command line."""
    recipe = parse(CorpusRecipe, "training.corpus", __doc__)
    info = prepare_corpus(recipe)
    counts = ", ".join(f"{info[key]:,} {key[4:]}" for key in ("num_documents", "num_sentences", "num_tokens"))
    print(f"{counts} -> {recipe.out}")


if __name__ == "__main__":
    main()
