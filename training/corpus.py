"""A corpus as token ids in memory-mapped Arrow shards.

    python -m training.corpus --data wiki-00.txt.xz books/ --tokenizer build/tokenizer --out build/corpus

A shard is a pure function of a chunk of text and the tokenizer, so that chunks run in parallel, the number of processes
changes nothing, and a shard that is there need not be made again: after an interruption the same command goes on with
what it finds in `build/corpus.partial`. The directory also holds the tokenizer and `corpus.json` with counts and
digests, which `python -m training.verify_corpus build/corpus` checks.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from tasks.files import atomic_write, check_output_path, resumable_directory, sha256
from tasks.tokenizer import Tokenizer
from tasks.tokenizer_files import TOKENIZER_FILE, TOKENIZER_FILES
from training.bounds import Bounds, check_numbers
from training.command import command, parse
from training.progress_bar import ProgressBar
from training.text.documents import BLOCK_BYTES, Block, find_files, read_blocks
from training.text.duplicates import DuplicateCounter
from training.text.pairs import LEAST_NEXT, LEAST_SHOWN, PairRules, PairSummary, estimate_pairs
from training.text.ray_shards import Job, make_shards_on_ray
from training.text.shard_maker import ShardSummary, make_shard
from training.text.shards import COUNTS, Shard
from training.text.words import name_with_version
from training.text.worker_pool import map_in_order

CORPUS_FILE = "corpus.json"
FORMAT = 4
"""Goes up when the same text and tokenizer give other shards than before."""
SAMPLE_TOKENS = 100_000
MUCH_DUPLICATION = 0.2
MUCH_UNKNOWN = 0.05
FEW_BOUNDARIES = 0.05
"""Share of the places between two characters where a word begins: 0.5 in Chinese that jieba segments."""
LONG_SENTENCE = 128
"""Tokens of an example in pretraining, as a rule."""
SAMPLE_SENTENCES, SAMPLE_DOCUMENTS = 200_000, 20_000
"""Size of the sample from which a corpus's pairs are estimated."""


@dataclass(frozen=True, kw_only=True)
class CorpusRecipe:
    """Turn text into the token shards that pretraining reads."""

    data: tuple[Path, ...]
    """Text, JSONL or Parquet files, or directories of them. Sentences end at the full stops of the text's script;
    Thai and Lao, which have none, at spaces."""
    tokenizer: Path
    """Directory with tokenizer.json (of `training.vocab`, or any checkpoint)."""
    out: Path
    """Directory to write; called `<out>.partial` until it is whole."""
    chunk_bytes: Annotated[int, Bounds(least=1, most=2**30)] = 4_000_000
    """Text in a shard. More than 100 GB of text needs larger ones: a process may map 65,530 files at most on Linux."""
    words: Literal["jieba", "spaces"] | None = None
    """Keep word boundaries that the tokenizer does not show, for `training.pretrain --whole-words`: `jieba` finds the
    words of Chinese text (group `chinese`), `spaces` takes those between Chinese or Japanese characters as they stand
    in text that was segmented before, and gives the tokens of the text without them."""
    num_workers: Annotated[int, Bounds(least=0, most=1000)] = 0
    """Processes; 0 for one a core."""
    ray: str | None = None
    """Prepare on a Ray cluster: host:port of its head, `auto` for the one that this machine belongs to, `local` for one
    of this machine alone. Data and `out` lie where all nodes find them under the same path."""
    replace: bool = False
    """Overwrite the directory; begin anew where a partial one was made from something else."""

    def __post_init__(self) -> None:
        check_numbers(self)


def prepare_corpus(recipe: CorpusRecipe) -> dict[str, Any]:
    """Tokenise text into shards, or go on with it where an interruption left it.

    Returns:
        What `corpus.json` holds: counts, shares of duplicates and digests.

    Raises:
        ValueError: for data or a tokenizer that cannot be read, or a directory that may not be written.
        ChildProcessError: when a segmenter or Ray is not there.
    """
    check_output_path(recipe.out, replace=recipe.replace)
    words = {"words": name_with_version(recipe.words)} if recipe.words else {}
    files = find_files(recipe.data)
    tokenizer = Tokenizer.load(recipe.tokenizer)
    states = _states(files)
    made_from = {
        "data": [{"file": path.name, "sha256": sha256(path)} for path in files],
        "tokenizer": tokenizer.digest,
        "chunk_bytes": recipe.chunk_bytes,
        "format": FORMAT,
        **words,
    }
    with resumable_directory(recipe.out, made_from=made_from, replace=recipe.replace) as directory:
        tokenizer_sha256 = _copy_tokenizer(recipe.tokenizer, directory)
        info = _collect(_summaries(recipe, files, directory, words.get("words"))) | words
        if not info["num_tokens"]:
            raise ValueError(f"no text in {', '.join(f'`{path}`' for path in files)}")
        if _states(files) != states:
            raise ValueError("the text was changed while it was read; prepare the corpus again")
        info |= {"vocab_size": tokenizer.vocab_size, "sources": made_from["data"]}
        info["tokenizer_sha256"] = tokenizer_sha256
        atomic_write(directory / CORPUS_FILE, (json.dumps(info, indent=2) + "\n").encode())
    return info


def _states(files: list[Path]) -> list[tuple[int, int]]:
    return [(path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def _collect(summaries: Iterator[ShardSummary]) -> dict[str, Any]:
    shards, num_unknown, sentences, documents = [], 0, DuplicateCounter(), DuplicateCounter()
    counts: Counter[str] = Counter()
    for summary in summaries:
        counts.update(summary.word_counts)
        shards.append(summary.record)
        num_unknown += summary.num_unknown
        sentences.add(*summary.sentences)
        documents.add(*summary.documents)
    info: dict[str, Any] = {key: sum(shard[key] for shard in shards) for key in COUNTS}
    shares = {"documents": round(documents.share(), 4), "sentences": round(sentences.share(), 4)}
    info |= {"duplicate_token_share": shares, "unknown_token_share": round(num_unknown / max(1, info["num_tokens"]), 4)}
    if counts:
        share = counts["num_boundaries"] / counts["num_seams"] if counts["num_seams"] else None
        info |= {"num_words": counts["num_words"], "word_boundary_share": share and round(share, 4)}
    return info | {"shards": shards}


def _summaries(recipe: CorpusRecipe, files: list[Path], directory: Path, words: str | None) -> Iterator[ShardSummary]:
    """Of all shards in order; those that are not there are made."""
    total, num_tokens = sum(path.stat().st_size for path in files), 0
    jobs = _jobs(files, directory, recipe.chunk_bytes, words)
    with ProgressBar("corpus", unit="byte", total=total) as bar:
        for summary in _made(recipe, jobs, directory, total):
            num_tokens += summary.record["num_tokens"]
            bar.note(f"{num_tokens:,} tokens")
            bar.update(summary.num_file_bytes)
            yield summary


def _made(recipe: CorpusRecipe, jobs: Iterator[Job], directory: Path, num_file_bytes: int) -> Iterator[ShardSummary]:
    if recipe.ray is None:
        return map_in_order(make_shard, jobs, num_workers=recipe.num_workers)
    return make_shards_on_ray(
        jobs, directory, num_file_bytes=num_file_bytes, num_workers=recipe.num_workers, address=recipe.ray
    )


def _jobs(files: list[Path], directory: Path, chunk_bytes: int, words: str | None) -> Iterator[Job]:
    for number, chunk in enumerate(_chunks(files, chunk_bytes)):
        path = directory / f"shard-{number:05d}.arrow"
        num_file_bytes = sum(block.num_file_bytes for block in chunk)
        yield path, [] if path.exists() else chunk, num_file_bytes, str(directory), words


def _chunks(files: list[Path], chunk_bytes: int) -> Iterator[list[Block]]:
    """Cut files into the text of shards, each ending with a document; small files share one."""
    chunk: list[Block] = []
    size = 0
    for path in files:
        for block in read_blocks(path, min(BLOCK_BYTES, chunk_bytes)):
            chunk.append(block)
            size += block.num_bytes
            if size >= chunk_bytes:
                yield chunk
                chunk, size = [], 0
    if chunk:
        yield chunk


class Corpus:
    """A prepared corpus, memory-mapped: nothing is read before it is used.

    Opening it checks that the tokenizer is the corpus's and that the shards have the size they should have; `verify`
    reads them.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        try:
            self.info = json.loads((self.directory / CORPUS_FILE).read_text(encoding="utf-8"))
            records = [record for record in self.info["shards"] if record["num_documents"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"not a corpus: `{directory}` has no readable {CORPUS_FILE}; run training.corpus"
            ) from error
        if not records:
            raise ValueError(f"no documents in corpus `{directory}`")
        self.tokenizer = Tokenizer.load(self.directory)
        if self.info.get("tokenizer_sha256") != sha256(self.directory / TOKENIZER_FILE):
            raise ValueError(_damaged(self.directory / TOKENIZER_FILE))
        self.has_words = bool(self.info.get("words"))
        """Whether it says more of words than the pieces of the tokenizer do."""
        self._shards = [_checked_shard(self.directory, record, has_words=self.has_words) for record in records]
        self._first_document = [0, *itertools.accumulate(shard.counts()["num_documents"] for shard in self._shards)]
        self.num_documents = self._first_document[-1]
        self.digest = sha256(self.directory / CORPUS_FILE)

    def sentence_ends(self, document: int) -> np.ndarray:
        """[sentences + 1] where the first sentence of a document begins and where each ends, in tokens of its shard."""
        shard, local = self._locate(document)
        return shard.sentence_ends[shard.document_ends[local] : shard.document_ends[local + 1] + 1]

    def num_sentences(self, document: int) -> int:
        """Number of sentences of a document."""
        return len(self.sentence_ends(document)) - 1

    def tokens(self, document: int, first: int, last: int) -> np.ndarray:
        """The ids of sentences first to last (exclusive) of a document, joined."""
        shard, local = self._locate(document)
        start = shard.document_ends[local]
        return shard.ids[shard.sentence_ends[start + first] : shard.sentence_ends[start + last]]

    def continues_word(self, document: int, first: int, last: int) -> np.ndarray:
        """[tokens] bool: which of `tokens` belong to the word of the one before; where the corpus `has_words`."""
        shard, local = self._locate(document)
        start = shard.document_ends[local]
        return shard.continues_word(shard.sentence_ends[start + first], shard.sentence_ends[start + last])

    def sample_tokens(self) -> tuple[np.ndarray, np.ndarray | None]:
        """The ids of the first tokens, and which continue a word, where the corpus `has_words`."""
        shard = self._shards[0]
        ids = shard.ids[:SAMPLE_TOKENS]
        return ids, shard.continues_word(0, len(ids)) if self.has_words else None

    def token_places(self, documents: np.ndarray, sentences: np.ndarray) -> np.ndarray:
        """[n] int64 where sentences of documents begin, in tokens of the corpus; one past its last is where it ends."""
        shard_of = np.searchsorted(self._first_document, documents, side="right") - 1
        order = np.argsort(shard_of, kind="stable")
        bounds = np.searchsorted(shard_of[order], np.arange(len(self._shards) + 1))
        places, num_before = np.empty(len(documents), np.int64), 0
        for number, shard in enumerate(self._shards):
            rows = order[bounds[number] : bounds[number + 1]]
            local = documents[rows] - self._first_document[number]
            ends = shard.sentence_ends[shard.document_ends[local] + sentences[rows]]
            places[rows] = num_before + ends.astype(np.int64)
            num_before += len(shard.ids)
        return places

    def num_single(self) -> int:
        """Number of documents of a single sentence."""
        return sum(int((np.diff(shard.document_ends) == 1).sum()) for shard in self._shards)

    def token_counts(self) -> np.ndarray:
        """[vocabulary] how often each token occurs."""
        size = self.tokenizer.vocab_size
        return sum((np.bincount(shard.ids, minlength=size) for shard in self._shards), np.zeros(size, np.int64))

    def verify(self) -> None:
        """Read every shard and compare its digest with `corpus.json`.

        Raises:
            ValueError: naming the shard that was damaged.
        """
        with ProgressBar("verify", unit="shard", total=len(self.info["shards"])) as bar:
            for record in self.info["shards"]:
                if sha256(self.directory / record["file"]) != record["sha256"]:
                    raise ValueError(_damaged(self.directory / record["file"]))
                bar.update(1)

    def _locate(self, document: int) -> tuple[Shard, int]:
        number = bisect_right(self._first_document, document) - 1
        return self._shards[number], document - self._first_document[number]


def _checked_shard(directory: Path, record: dict[str, Any], *, has_words: bool) -> Shard:
    shard = Shard(directory / record["file"])
    if shard.has_words != has_words or any(shard.counts()[key] != record.get(key) for key in COUNTS):
        raise ValueError(_damaged(directory / record["file"]))
    return shard


def _damaged(path: Path) -> str:
    return f"`{path}` is not the one that {CORPUS_FILE} describes; prepare the corpus again"


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
    recipe = parse(CorpusRecipe, "training.corpus", __doc__, _with_address(sys.argv[1:]))
    info = prepare_corpus(recipe)
    counts = ", ".join(f"{info[key]:,} {key[4:]}" for key in COUNTS)
    share = info["duplicate_token_share"]
    repeated = (
        f"{share['sentences']:.1%} of tokens in repeated sentences, {share['documents']:.1%} in repeated documents"
    )
    words = f"words of {recipe.words}: {info['num_words']:,}; " if recipe.words else ""
    print(f"{counts}; {words}{repeated} -> {recipe.out}")
    corpus = Corpus(recipe.out)
    pairs = _estimate(corpus)
    print(_describe_pairs(corpus, pairs))
    for warning in (*_warnings(info), *_pair_warnings(corpus, pairs)):
        print(f"warning: {warning}", file=sys.stderr)


def _with_address(arguments: list[str]) -> list[str]:
    """`--ray` may stand alone."""
    found = [index for index, word in enumerate(arguments, start=1) if word == "--ray"]
    for index in reversed(found):
        if arguments[index : index + 1] == [] or arguments[index].startswith("-"):
            arguments = [*arguments[:index], "auto", *arguments[index:]]
    return arguments


def _word_warnings(info: dict[str, Any]) -> Iterator[str]:
    share = info.get("word_boundary_share", 0.5)
    if share is None or share > 1 - FEW_BOUNDARIES:
        yield f"--words {info['words'].split()[0]} found no words of several characters in this text; leave it out"
    elif share < FEW_BOUNDARIES:
        yield (
            f"words begin at {share:.1%} of the places between two characters; text that is not segmented yet wants "
            "--words jieba"
        )


def _warnings(info: dict[str, Any]) -> Iterator[str]:
    if max(info["duplicate_token_share"].values()) > MUCH_DUPLICATION:
        yield "much of this text occurs more than once, which makes the loss look better than the model is; " + (
            "remove duplicates before training"
        )
    if info["unknown_token_share"] > MUCH_UNKNOWN:
        yield (
            f"{info['unknown_token_share']:.1%} of tokens are [UNK], words for which the vocabulary has no pieces; "
            + ("learn one from this text, or a larger one: training.vocab")
        )
    if _has_long_sentences(info):
        yield f"sentences have {info['num_tokens'] / info['num_sentences']:.0f} tokens in the mean, of which " + (
            "pretraining reads as many as an example has; put a sentence a line"
        )
    yield from _word_warnings(info)
    if info["num_documents"] < 2:
        yield "all of this is one document, but pretraining needs at least two; put a blank line between documents"


def _has_long_sentences(info: dict[str, Any]) -> bool:
    return bool(info["num_tokens"] > LONG_SENTENCE * info["num_sentences"])


def _estimate(corpus: Corpus) -> PairSummary:
    """Pairs of an epoch at the default length, of as many documents as take about a second."""
    size = max(corpus.info["num_sentences"] / SAMPLE_SENTENCES, corpus.num_documents / SAMPLE_DOCUMENTS, 1)
    step = max(1, min(math.ceil(size), corpus.num_documents - 1))  # two documents at least, where there are
    rules = PairRules(max_seq_length=LONG_SENTENCE, next_sentences=corpus.num_documents > 1)
    return estimate_pairs(corpus, rules, step=step)


def _describe_pairs(corpus: Corpus, pairs: PairSummary) -> str:
    num_single = corpus.num_single()
    text = (
        f"{num_single:,} of {corpus.num_documents:,} documents ({num_single / corpus.num_documents:.1%}) have a single "
        f"sentence; an epoch of examples of {LONG_SENTENCE} tokens shows about {pairs.shown:.1%} of the text"
    )
    if corpus.num_documents < 2:
        return text
    return f"{text}; about {pairs.can_be_next:.1%} of its next-sentence pairs can be next"


def _pair_warnings(corpus: Corpus, pairs: PairSummary) -> Iterator[str]:
    if corpus.num_documents >= 2 and pairs.can_be_next < LEAST_NEXT:
        yield (
            f"about {pairs.can_be_next:.1%} of next-sentence pairs can be next ({corpus.num_single():,} of "
            f"{corpus.num_documents:,} documents have a single sentence): if sentence ends were not found, put a "
            "sentence a line; if each line is a document, put blank lines between whole documents only; or pretrain "
            "with --no-next-sentences"
        )
    if pairs.shown < LEAST_SHOWN and not _has_long_sentences(corpus.info):  # which is warned of already
        yield (
            f"an epoch of examples of {LONG_SENTENCE} tokens shows about {pairs.shown:.1%} of the text: sentences that "
            "are longer than an example are cut; put a sentence a line, or pretrain with a larger --max-seq-length"
        )


if __name__ == "__main__":
    main()
