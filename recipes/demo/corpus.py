"""Corpus for pretraining; each module is a document."""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

from recipes.demo.modules import SPLITS, Module, Source, normalize, rank, read_module, split_of
from tasks.bundle.machine import available_cpus
from training.command_line.progress_bar import ProgressBar

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
