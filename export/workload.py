"""Batches like those to come, and how fast a graph gets through them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import numpy as np

from tasks.batching import Run, token_batches
from tasks.features import Features, collate

Arrays = dict[str, np.ndarray]
KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(frozen=True)
class Workload:
    """Sequences to be run, of which only the lengths matter."""

    lengths: tuple[int, ...]
    """In tokens."""
    vocab_size: int

    @property
    def num_tokens(self) -> int:
        """Without padding."""
        return sum(self.lengths)

    def batches(self, max_batch_tokens: int) -> list[Arrays]:
        """Sorted by length and capped, as evaluation and the server make them."""
        rng = np.random.default_rng(0)
        features = [_random_features(rng, length, self.vocab_size) for length in self.lengths]
        return [
            collate([features[index] for index in batch]) for batch in token_batches(self.lengths, max_batch_tokens)
        ]


def _random_features(rng: np.random.Generator, length: int, vocab_size: int) -> Features:
    ids = rng.integers(0, vocab_size, length)
    return Features(input_ids=ids, token_type_ids=np.zeros(length, np.int64))


def typical_lengths(num_sequences: int, max_length: int) -> tuple[int, ...]:
    """Lengths of sentences, where there are no texts to go by: log-normal about 25 tokens, few above 80."""
    drawn = np.random.default_rng(0).lognormal(np.log(25), 0.6, num_sequences)
    return tuple(int(length) for length in np.clip(np.rint(drawn), min(3, max_length), max_length))


def run_all(run: Run, batches: Sequence[Arrays], num_callers: int) -> float:
    """Run batches by several threads at once, each taking the next one when it is free.

    Returns:
        Seconds from the first to the last.
    """
    waiting = iter(batches)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                batch = next(waiting, None)
            if batch is None:
                return
            run(batch)

    threads = [threading.Thread(target=work) for _ in range(num_callers)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def interleaved(candidates: Mapping[KeyT, Callable[[], float]], rounds: int) -> dict[KeyT, float]:
    """Medians of what candidates measure, in turns: what else the machine does meanwhile meets them all alike."""
    found: dict[KeyT, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, measure in candidates.items():
            found[name].append(measure())
    return {name: median(values) for name, values in found.items()}
