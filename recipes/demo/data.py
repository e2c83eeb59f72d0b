"""Make the demo's data from docstrings: a corpus, labelled texts and questions.

python -m recipes.demo.data build/demo/data
python -m recipes.demo.data build/demo/data --max-words 200000 --seed 1

corpus/{train,dev}.txt             a sentence a line, a blank line between documents (modules)
classification/{train,dev}.jsonl   {"text", "label"}: which library a docstring is from
spans/{train,dev}.json             SQuAD v1.1: types and defaults of parameters
data.json                          counts; written last
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import platform
import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import tyro

from recipes.demo.labelled import labelled_texts, question_paragraphs
from recipes.demo.modules import (
    SPLITS,
    Module,
    Source,
    find_sources,
    installed_libraries,
    normalize,
    rank,
    read_module,
    split_of,
)
from tasks.bundle.files import atomic_write
from tasks.bundle.machine import available_cpus
from training.command_line.bounds import COUNT, check_numbers
from training.command_line.command import command, parse
from training.command_line.progress_bar import ProgressBar

NUMBERS_FILE = "data.json"
MAX_WORDS = 1_500_000
MAX_REPEATS = 3
"""Largest number of copies of a sentence in the corpus."""
LEAK_WORDS = 5
"""Longest sentence, in words, that may occur in both splits."""
BATCH_FILES = 256


@dataclass
class Corpus:
    """Sentences by document and docstring, without frequent repetitions."""

    seed: int
    documents: dict[str, list[list[list[str]]]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    """Sentences of each docstring of each document, by split."""
    words: Counter[str] = field(default_factory=Counter)
    """Number of words by library."""
    _repeats: Counter[str] = field(default_factory=Counter)

    def add(self, module: Module) -> int:
        """Add one module without sentences that are already frequent; return the number of words added."""
        document = []
        for docstring in module.docstrings:
            fresh = []
            for sentence in docstring.sentences:
                key = normalize(sentence)
                self._repeats[key] += 1
                if self._repeats[key] <= MAX_REPEATS:
                    fresh.append(sentence)
            if fresh:
                document.append(fresh)
        num_words = sum(len(text.split()) for docstring in document for text in docstring)
        self.words[module.source.library] += num_words
        self.documents[split_of(module.source.module, self.seed)].append(document)
        return num_words

    def splits(self) -> dict[str, list[list[str]]]:
        """Return documents of at least two sentences by split; no long sentence of dev is in train."""
        train = [docstring for document in self.documents["train"] for docstring in document]
        known = {normalize(text) for docstring in train for text in (" ".join(docstring), *docstring)}
        found = {"train": [list(chain.from_iterable(document)) for document in self.documents["train"]]}
        found["dev"] = [_unknown(document, known) for document in self.documents["dev"]]
        return {split: [document for document in documents if len(document) > 1] for split, documents in found.items()}


def _unknown(document: list[list[str]], known: set[str]) -> list[str]:
    """Return the sentences of a document, without known docstrings and long known sentences."""
    return [
        text
        for docstring in document
        if normalize(" ".join(docstring)) not in known
        for text in docstring
        if len(text.split()) <= LEAK_WORDS or normalize(text) not in known
    ]


def read_modules(sources: Sequence[Source], *, max_words: int, seed: int) -> tuple[list[Module], Corpus, int]:
    """Read files in an order given by the seed until the corpus has `max_words`, with a limit for each library.

    Args:
        max_words: size of the corpus, in words.

    Returns:
        The modules read, the corpus of them, and the number of files that could not be read.
    """
    num_libraries = len({source.library for source in sources})
    library_words = max_words / min(10, max(1, num_libraries))
    ordered = sorted(sources, key=lambda source: rank("order", seed, source.module))
    modules, corpus, num_skipped = [], Corpus(seed), 0
    context = multiprocessing.get_context("spawn")  # forking a process with threads (tqdm has one) is unsafe
    with (
        ProcessPoolExecutor(min(available_cpus(), 8), context, _start_worker) as pool,
        ProgressBar("read", unit="word", total=max_words) as progress,
    ):
        for first in range(0, len(ordered), BATCH_FILES):
            batch = ordered[first : first + BATCH_FILES]
            wanted = [source for source in batch if corpus.words[source.library] < library_words]
            for module in pool.map(read_module, wanted, chunksize=16):
                if module is None:
                    num_skipped += 1
                elif corpus.words.total() < max_words:
                    modules.append(module)
                    progress.update(corpus.add(module))
            if corpus.words.total() >= max_words:
                break
    return modules, corpus, num_skipped


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops the workers
    gc.disable()  # saves a fifth of the time, as syntax trees have no cycles


def build(
    out_dir: str | Path, *, folders: Mapping[str, Path], max_words: int = MAX_WORDS, seed: int = 0
) -> dict[str, Any]:
    """Write all data files atomically, `data.json` last.

    Args:
        out_dir: directory to write to; other files in it are kept.
        folders: folder of each library, as `installed_libraries` returns it.

    Returns:
        The content of `data.json`.

    Raises:
        ValueError: if a file would be empty; nothing is written then.
        OSError: if `out_dir` cannot be written.
    """
    out_dir = Path(out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)  # fail before the work, not after it
    modules, corpus, num_skipped = read_modules(find_sources(folders), max_words=max_words, seed=seed)
    documents, texts, paragraphs = corpus.splits(), labelled_texts(modules, seed), question_paragraphs(modules, seed)
    files = {}
    for split in SPLITS:
        files[f"corpus/{split}.txt"] = "\n".join("\n".join(document) + "\n" for document in documents[split])
        files[f"classification/{split}.jsonl"] = "".join(_json(text) + "\n" for text in texts[split])
        files[f"spans/{split}.json"] = _json(_squad(paragraphs[split])) + "\n" if paragraphs[split] else ""
    for name, content in files.items():
        if not content:
            raise ValueError(f"too little documentation for `{name}`: `{len(modules)}` modules read; raise --max-words")
    numbers = {
        "seed": seed,
        "max_words": max_words,
        "python": platform.python_version(),
        "num_modules": len(modules),
        "num_skipped_files": num_skipped,
        "files": {
            "sentences": {split: sum(map(len, documents[split])) for split in SPLITS},
            "texts": {split: len(texts[split]) for split in SPLITS},
            "contexts": {split: len(paragraphs[split]) for split in SPLITS},
            "questions": {split: sum(len(item["qas"]) for _, item in paragraphs[split]) for split in SPLITS},
        },
    }
    (out_dir / NUMBERS_FILE).unlink(missing_ok=True)
    for name, content in files.items():
        atomic_write(out_dir / name, content.encode())
    atomic_write(out_dir / NUMBERS_FILE, (json.dumps(numbers, indent=2) + "\n").encode())
    return numbers


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _squad(paragraphs: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    articles: dict[str, list[dict[str, Any]]] = {}
    for library, paragraph in paragraphs:
        articles.setdefault(library, []).append(paragraph)
    data = [{"title": library, "paragraphs": found} for library, found in sorted(articles.items())]
    return {"version": "1.1", "data": data}


@dataclass(frozen=True, kw_only=True)
class DataArguments:
    """Make the demo's data from docstrings."""

    out: Annotated[Path, tyro.conf.Positional]
    """Directory to write; other files in it are kept."""
    max_words: Annotated[int, COUNT] = MAX_WORDS
    """Words of the corpus."""
    seed: int = 0
    """Seed of splits and samples."""

    def __post_init__(self) -> None:
        check_numbers(self)


@command
def main() -> None:
    """Command line."""
    arguments = parse(DataArguments, "recipes.demo.data", __doc__)
    numbers = build(arguments.out, folders=installed_libraries(), max_words=arguments.max_words, seed=arguments.seed)
    made = {name: sum(counts.values()) for name, counts in numbers["files"].items()}
    print(
        f"{made['sentences']:,} sentences, {made['texts']:,} labelled texts, {made['questions']:,} questions "
        f"-> {arguments.out}"
    )


if __name__ == "__main__":
    main()
