"""Prepare a corpus for pretraining: token ids in memory-mapped Arrow shards.

    python -m training.corpus --data wiki-00.txt.xz books/ --tokenizer build/tokenizer --out build/corpus

A shard is a pure function of a chunk of text and the tokenizer, so chunks run in parallel and the number of processes
does not matter. After an interruption, the same command continues with the shards in `build/corpus.partial`. The
directory also holds the tokenizer and `corpus.json` with counts and digests, which
`python -m training.corpus verify build/corpus` checks.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from tasks.bundle.files import atomic_write, check_output_path, resumable_directory, sha256
from tasks.schema import Bounds
from tasks.text.tokenizer_files import TOKENIZER_FILE
from training.checkpoint.tokenizer import copy_tokenizer, read_tokenizer
from training.command_line.bounds import check_numbers
from training.command_line.command import command, parse
from training.command_line.progress_bar import ProgressBar
from training.text.corpus import CORPUS_FILE, Corpus
from training.text.documents import BLOCK_BYTES, Block, find_files, read_blocks
from training.text.duplicates import DuplicateCounter
from training.text.pairs import MIN_CAN_BE_NEXT, MIN_SHOWN, PairRules, PairStatistics, estimate_pair_statistics
from training.text.ray_shards import Job, make_shards_on_ray
from training.text.shard_maker import ShardStatistics, make_shard
from training.text.shards import COUNTS
from training.text.words import name_with_version
from training.text.worker_pool import map_in_order

FORMAT = 4
"""Version of the shards: raise it if the same text and tokenizer give other shards than before."""
MAX_DUPLICATE_FRACTION = 0.2
MAX_UNKNOWN_FRACTION = 0.05
MIN_BOUNDARY_FRACTION = 0.05
"""Warn if words begin at a smaller fraction of the seams between characters: 0.5 in Chinese segmented by jieba."""
EXAMPLE_TOKENS = 128
"""Usual number of tokens of an example in pretraining."""
SAMPLE_SENTENCES, SAMPLE_DOCUMENTS = 200_000, 20_000
"""Size of the sample from which statistics of pairs are estimated."""


@dataclass(frozen=True, kw_only=True)
class CorpusRecipe:
    """Turn text into the token shards that pretraining reads."""

    data: tuple[Path, ...]
    """Text, JSONL or Parquet files, or directories of them. Sentences end at the full stops of the text's script; in
    Thai and Lao, at spaces."""
    tokenizer: Path
    """Directory with tokenizer.json, from `training.vocab` or any checkpoint."""
    out: Path
    """Directory to write; named `<out>.partial` until it is complete."""
    chunk_bytes: Annotated[int, Bounds(least=1, most=2**30)] = 4_000_000
    """Bytes of text in a shard. Raise it for more than 100 GB of text: a Linux process can map at most 65,530 files."""
    words: Literal["jieba", "spaces"] | None = None
    """Keep word boundaries of text without spaces, for `training.pretrain --whole-words`. `jieba` segments Chinese text
    (dependency group `chinese`). `spaces` reads Chinese or Japanese text that is already segmented: spaces between
    characters are word boundaries, and are removed."""
    num_workers: Annotated[int, Bounds(least=0, most=1000)] = 0
    """Worker processes: 0 for one for each core, 1 to work in this process. With --ray, shards at a time."""
    ray: str | None = None
    """Prepare on a Ray cluster: host:port of its head, `auto` for the cluster of this machine, `local` to start one on
    this machine. All nodes must see data and `out` under the same path."""
    replace: bool = False
    """Overwrite the directory, or a partial one that was made from something else."""

    def __post_init__(self) -> None:
        check_numbers(self)


def prepare_corpus(recipe: CorpusRecipe) -> dict[str, Any]:
    """Tokenize text into shards; continue after an interruption.

    Returns:
        The content of `corpus.json`: counts, fractions of unknown and duplicate tokens, and digests.

    Raises:
        ValueError: if data or tokenizer cannot be read, or the directory exists.
        ChildProcessError: if the segmenter or Ray is not installed, or the cluster failed.
    """
    check_output_path(recipe.out, replace=recipe.replace)
    words = {"words": name_with_version(recipe.words)} if recipe.words else {}
    files = find_files(recipe.data)
    tokenizer = read_tokenizer(recipe.tokenizer)
    states = _states(files)
    made_from = {
        "data": [{"file": path.name, "sha256": sha256(path)} for path in files],
        "tokenizer": tokenizer.digest,
        "chunk_bytes": recipe.chunk_bytes,
        "format": FORMAT,
        **words,
    }
    with resumable_directory(recipe.out, made_from=made_from, replace=recipe.replace) as directory:
        copy_tokenizer(recipe.tokenizer, directory)
        if not (directory / TOKENIZER_FILE).is_file():
            tokenizer.backend.save(str(directory / TOKENIZER_FILE))
        info = _collect(_shards(recipe, files, directory, words.get("words"))) | words
        if not info["num_tokens"]:
            raise ValueError(f"no text in {', '.join(f'`{path}`' for path in files)}")
        if _states(files) != states:
            raise ValueError("the text was changed while it was read; prepare the corpus again")
        info |= {"vocab_size": tokenizer.vocab_size, "sources": made_from["data"]}
        info["tokenizer_sha256"] = sha256(directory / TOKENIZER_FILE)
        atomic_write(directory / CORPUS_FILE, (json.dumps(info, indent=2) + "\n").encode())
    return info


def _states(files: list[Path]) -> list[tuple[int, int]]:
    return [(path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def _collect(shards: Iterator[ShardStatistics]) -> dict[str, Any]:
    records, num_unknown, sentences, documents = [], 0, DuplicateCounter(), DuplicateCounter()
    counts: Counter[str] = Counter()
    for shard in shards:
        counts.update(shard.word_counts)
        records.append(shard.record)
        num_unknown += shard.num_unknown
        sentences.add(*shard.sentences)
        documents.add(*shard.documents)
    info: dict[str, Any] = {key: sum(record[key] for record in records) for key in COUNTS}
    info |= {
        "duplicate_token_fraction": {
            "documents": round(documents.fraction(), 4),
            "sentences": round(sentences.fraction(), 4),
        },
        "unknown_token_fraction": round(num_unknown / max(1, info["num_tokens"]), 4),
    }
    if counts:
        fraction = counts["num_boundaries"] / counts["num_seams"] if counts["num_seams"] else None
        info |= {"num_words": counts["num_words"], "word_boundary_fraction": fraction and round(fraction, 4)}
    return info | {"shards": records}


def _shards(recipe: CorpusRecipe, files: list[Path], directory: Path, words: str | None) -> Iterator[ShardStatistics]:
    """Make the shards that do not exist, and yield the statistics of all, in order."""
    total, num_tokens = sum(path.stat().st_size for path in files), 0
    jobs = _jobs(files, directory, recipe.chunk_bytes, words)
    if recipe.ray is None:
        shards = map_in_order(make_shard, jobs, num_workers=recipe.num_workers)
    else:
        shards = make_shards_on_ray(
            jobs, directory, num_file_bytes=total, num_workers=recipe.num_workers, address=recipe.ray
        )
    with ProgressBar("corpus", unit="byte", total=total) as bar:
        for shard in shards:
            num_tokens += shard.record["num_tokens"]
            bar.note(f"{num_tokens:,} tokens")
            bar.update(shard.num_file_bytes)
            yield shard


def _jobs(files: list[Path], directory: Path, chunk_bytes: int, words: str | None) -> Iterator[Job]:
    for number, chunk in enumerate(_chunks(files, chunk_bytes)):
        path = directory / f"shard-{number:05d}.arrow"
        num_file_bytes = sum(block.num_file_bytes for block in chunk)
        yield path, [] if path.exists() else chunk, num_file_bytes, str(directory), words


def _chunks(files: list[Path], chunk_bytes: int) -> Iterator[list[Block]]:
    """Cut files into chunks of whole documents, one for each shard; small files share a chunk."""
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


@dataclass(frozen=True, kw_only=True)
class VerifyRecipe:
    """Compare the shards of a corpus with their digests in corpus.json."""

    corpus: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CORPUS")]
    """Directory written by training.corpus."""


@command
def main() -> None:
    """Command line."""
    if sys.argv[1:2] == ["verify"]:
        corpus = Corpus(parse(VerifyRecipe, "training.corpus verify", __doc__, sys.argv[2:]).corpus)
        corpus.verify()
        print(f"{len(corpus.info['shards'])} shards are intact: `{corpus.directory}`")
        return
    recipe = parse(CorpusRecipe, "training.corpus", __doc__, _with_address(sys.argv[1:]))
    info = prepare_corpus(recipe)
    counts = ", ".join(f"{info[key]:,} {key[4:]}" for key in COUNTS)
    repeated = info["duplicate_token_fraction"]
    in_sentences, in_documents = (f"{repeated[kind]:.1%}" for kind in ("sentences", "documents"))
    duplicates = f"{in_sentences} of tokens in repeated sentences, {in_documents} in repeated documents"
    words = f"{info['num_words']:,} words ({recipe.words}); " if recipe.words else ""
    print(f"{counts}; {words}{duplicates} -> {recipe.out}")
    corpus = Corpus(recipe.out)
    pairs, num_single = _estimate_pairs(corpus), corpus.num_single()
    text = (
        f"{num_single:,} of {corpus.num_documents:,} documents ({num_single / corpus.num_documents:.1%}) have a single "
        f"sentence; an epoch of examples of {EXAMPLE_TOKENS} tokens shows about {pairs.shown:.1%} of the text"
    )
    next_pairs = f"; about {pairs.can_be_next:.1%} of its sentence pairs can be consecutive"
    print(text + next_pairs * (corpus.num_documents > 1))
    for warning in _warnings(corpus, pairs):
        print(f"warning: {warning}", file=sys.stderr)


def _with_address(arguments: list[str]) -> list[str]:
    """Insert `auto` after a `--ray` without a value."""
    found = [index for index, word in enumerate(arguments, start=1) if word == "--ray"]
    for index in reversed(found):
        if arguments[index : index + 1] == [] or arguments[index].startswith("-"):
            arguments = [*arguments[:index], "auto", *arguments[index:]]
    return arguments


def _warnings(corpus: Corpus, pairs: PairStatistics) -> Iterator[str]:
    info = corpus.info
    if max(info["duplicate_token_fraction"].values()) > MAX_DUPLICATE_FRACTION:
        yield (
            "much of the text occurs more than once, which makes the loss look better than the model is; remove "
            "duplicates before training"
        )
    if info["unknown_token_fraction"] > MAX_UNKNOWN_FRACTION:
        yield (
            f"{info['unknown_token_fraction']:.1%} of tokens are [UNK]: the vocabulary does not fit the text; train a "
            "vocabulary on this text, or a larger one, with training.vocab"
        )
    mean_tokens = info["num_tokens"] / info["num_sentences"]
    if mean_tokens > EXAMPLE_TOKENS:
        yield (
            f"a sentence has {mean_tokens:.0f} tokens on average, and pretraining cuts sentences that are longer than "
            "an example; put a sentence a line"
        )
    boundaries = info.get("word_boundary_fraction", 0.5)
    if boundaries is None or boundaries > 1 - MIN_BOUNDARY_FRACTION:
        yield f"--words {info['words'].split()[0]} found no words of several characters in this text; leave it out"
    elif boundaries < MIN_BOUNDARY_FRACTION:
        yield (
            f"words begin at only {boundaries:.1%} of the boundaries between characters; if the text is not segmented, "
            "use --words jieba"
        )
    if corpus.num_documents < 2:
        yield "the text is a single document, but pretraining needs two; put a blank line between documents"
    elif pairs.can_be_next < MIN_CAN_BE_NEXT:
        yield (
            f"about {pairs.can_be_next:.1%} of sentence pairs can be consecutive ({corpus.num_single():,} of "
            f"{corpus.num_documents:,} documents have a single sentence): if sentence ends were not found, put a "
            "sentence a line; if each line is a document, put blank lines between whole documents only; or pretrain "
            "with --no-next-sentences"
        )
    if pairs.shown < MIN_SHOWN and mean_tokens <= EXAMPLE_TOKENS:  # else covered by another warning
        yield (
            f"an epoch of examples of {EXAMPLE_TOKENS} tokens shows about {pairs.shown:.1%} of the text: sentences "
            "longer than an example are cut; put a sentence a line, or pretrain with a larger --max-seq-length"
        )


def _estimate_pairs(corpus: Corpus) -> PairStatistics:
    """Estimate statistics of an epoch at the usual length, from a sample that takes about a second."""
    size = max(corpus.info["num_sentences"] / SAMPLE_SENTENCES, corpus.num_documents / SAMPLE_DOCUMENTS, 1)
    step = max(1, min(math.ceil(size), corpus.num_documents - 1))  # at least two documents, if there are two
    rules = PairRules(
        max_seq_length=EXAMPLE_TOKENS,
        num_special=corpus.tokenizer.pair.num_special,
        next_sentences=corpus.num_documents > 1,
    )
    return estimate_pair_statistics(corpus, rules, step=step)


if __name__ == "__main__":
    main()
