"""Batches like those to come, and how fast a graph gets through them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean, geometric_mean, median
from typing import Any, TypeVar

import numpy as np

from tasks.batching import RunModel, token_batches
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

    @property
    def mean_length(self) -> float:
        """In tokens."""
        return fmean(self.lengths)

    def scaled(self, times: float) -> Workload:
        """So many times as much, or a part of it, with lengths in the same proportions."""
        size = max(1, round(times * len(self.lengths)))
        lengths = sorted(self.lengths)
        middles = ((2 * number + 1) * len(lengths) // (2 * size) for number in range(size))
        return replace(self, lengths=tuple(lengths[middle] for middle in middles))

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


def run_all(run: RunModel, batches: Sequence[Arrays], num_callers: int) -> float:
    """Run batches by several threads at once, each taking the next one when it is free.

    Returns:
        Seconds that a thread worked, on average: what remains of the last batches when there are no more to take would
        weigh little in a server that always has some.
    """
    waiting = iter(batches)
    lock = threading.Lock()

    def work(_: int) -> float:
        started = time.perf_counter()
        while True:
            with lock:
                batch = next(waiting, None)
            if batch is None:
                return time.perf_counter() - started
            run(batch)

    with ThreadPoolExecutor(num_callers) as threads:
        return fmean(threads.map(work, range(num_callers)))


def timed(candidates: Mapping[KeyT, Callable[[], float]], rounds: int, **options: Any) -> dict[KeyT, float]:
    """What candidates take, as `paired_medians` has it of a race.

    Args:
        options: those of `race`.
    """
    return paired_medians(race(candidates, rounds, **options))


def paired_medians(found: Mapping[KeyT, Sequence[float]]) -> dict[KeyT, float]:
    """What candidates of a race take at the same moments: each one's median share of its rounds, times what a round
    usually takes. A slow second of the machine changes the round, and hardly the shares.

    Args:
        found: seconds by round. A round counts as what those took in it (geometric mean) that ran to the end.
    """
    num_rounds = max(map(len, found.values()))
    whole = [geometric_mean(taken) for taken in zip(*(x for x in found.values() if len(x) == num_rounds), strict=True)]
    usual = median(whole)
    return {
        name: usual * median(one / of for one, of in zip(seconds, whole, strict=False))
        for name, seconds in found.items()
    }


def race(
    candidates: Mapping[KeyT, Callable[[], float]],
    rounds: int,
    *,
    lost: float = inf,
    after: int = 3,
    progress: Callable[[int], object] = lambda count: None,
) -> dict[KeyT, list[float]]:
    """What candidates measure, in turns: what else the machine does meanwhile meets them all alike.

    Args:
        lost: candidates that take so many times what the fastest takes run no more; a last one needs no more rounds.
        after: from this round on.
        progress: called with 1 after each round.
    """
    found: dict[KeyT, list[float]] = {name: [] for name in candidates}
    running = list(candidates)
    for number in range(rounds):
        if number >= after:
            seconds = paired_medians(found)
            running = [name for name in running if seconds[name] <= lost * min(seconds.values())]
        if number < after or len(running) > 1:
            for name in running:
                found[name].append(candidates[name]())
        progress(1)
    return found
