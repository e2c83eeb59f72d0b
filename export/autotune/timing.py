"""Time graphs alternately, so that other work on the machine affects all of them alike."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from statistics import fmean
from typing import TypeVar

import numpy as np

from export.autotune.workload import Arrays, Workload
from export.graph import AnyNetwork, build_graph
from export.session import graph_run
from export.targets import default_configuration
from export.variant import Configuration, GraphPrecision, Target
from tasks.batching import RunModel

KeyT = TypeVar("KeyT", bound=Hashable)

PASS_S = 0.05
"""Minimum seconds of a measurement. On a shared host, many short ones average out bursts better than few long ones."""
LARGE_BYTES = 2**28
"""Weights from this size on are large: a session keeps those of its matrix products again, packed."""
ERROR, NUM_FITS = 0.1, 30
"""Relative error that makes a measurement count a quarter, and steps of the fit."""
QUIET, SLOWNESS, MAX_SLOWNESS = 0.1, 0.05, 0.5
"""Fraction of the rounds that are taken as undisturbed; how much slower a round is that counts half; slowness that
counts no more, so that each round counts at least a hundredth."""
BUSY = 0.1
"""Mean slowdown of rounds against the fastest tenth, from which other work disturbs a race; 3 to 6% on idle cores."""
CAUTION = 2
"""How much the limit for candidates that drop out is raised after the first round; after n, by the n-th part of it."""
SURE_ROUNDS = 3
"""Rounds before candidates drop out."""
MIN_BATCHES = 1
"""Minimum workload of a measurement, in batches of the largest size per concurrent caller."""


def run_all(run: RunModel, batches: Sequence[Arrays], num_callers: int) -> float:
    """Run batches in several threads; each takes the next batch when it is free.

    Returns:
        The mean time the threads worked, in seconds. Unlike the total time, it does not count threads that idle while
        the last batches finish, as a busy server always has more batches.
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


def race(
    candidates: Mapping[KeyT, Callable[[int], float]],
    rounds: int,
    *,
    max_slowdown: float = inf,
    progress: Callable[[int], object] = lambda count: None,
) -> dict[KeyT, list[float]]:
    """Measure candidates alternately, each one once a round.

    Args:
        candidates: functions that return the seconds of a measurement from the number of the round, by name.
        max_slowdown: after n rounds, drop candidates that take more than max_slowdown * (1 + CAUTION / n) times as long
            as the fastest; stop when one is left.
        progress: called with 1 after each round.

    Returns:
        Seconds of each candidate by round.
    """
    times: dict[KeyT, list[float]] = {name: [] for name in candidates}
    running = list(candidates)
    for number in range(rounds):
        if number >= SURE_ROUNDS:
            seconds = fitted_seconds(times)
            limit = max_slowdown * (1 + CAUTION / number) * min(seconds.values())
            running = [name for name in running if seconds[name] <= limit]
        if number < SURE_ROUNDS or len(running) > 1:
            for name in running:
                times[name].append(candidates[name](number))
        progress(1)
    return times


def fitted_seconds(times: Mapping[KeyT, Sequence[float]]) -> dict[KeyT, float]:
    """Summarise a race: the seconds of each candidate, as if all had run at the same moments.

    Fits log(seconds) = candidate + round + error by least squares, with weights that fall with the error (Geman and
    McClure 1987, an M-estimator). So a slow moment of the machine slows its round down, and a measurement that other
    work disturbs counts little. Rounds count less the slower they are than the fastest tenth, as other work slows some
    candidates more than others. Medians of relative times are four times as noisy on a shared host that is busy half
    of the time.

    Args:
        times: seconds by round; fewer for candidates that dropped out.
    """
    candidates, rounds = _fit(times)
    return dict(zip(times, np.exp(candidates + np.median(rounds)).tolist(), strict=True))


def slowdown(times: Mapping[KeyT, Sequence[float]]) -> float:
    """Return how much longer a round took than the fastest tenth, on average: 0.1 for a tenth longer."""
    _, rounds = _fit(times)
    return float(np.exp(rounds - np.quantile(rounds, QUIET)).mean() - 1)


def _fit(times: Mapping[KeyT, Sequence[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the logarithms of the seconds of each candidate, relative to a round, and of each round."""
    num_rounds = max(map(len, times.values()))
    is_known = np.array([[number < len(seconds) for number in range(num_rounds)] for seconds in times.values()])
    logs = np.full(is_known.shape, np.nan)
    logs[is_known] = np.log(np.concatenate([*times.values()]))
    whole = logs[is_known.all(1)].mean(0)
    candidates = np.nanmedian(logs - whole, axis=1)
    rounds = np.nanmedian(logs - candidates[:, None], axis=0)
    logs[~is_known] = 0.0
    for _ in range(NUM_FITS):
        errors = (logs - candidates[:, None] - rounds) / ERROR
        slowness = np.clip(rounds - np.quantile(rounds, QUIET), 0.0, MAX_SLOWNESS) / SLOWNESS
        weights = is_known / (1 + errors**2) ** 2 / (1 + slowness**2)
        rounds = (weights * (logs - candidates[:, None])).sum(0) / weights.sum(0)
        candidates = (weights * (logs - rounds)).sum(1) / weights.sum(1)
    return candidates, rounds


class Timer:
    """Times configurations of a network on a workload, scaled so that one pass takes about `PASS_S`."""

    def __init__(
        self, network: AnyNetwork, precision: GraphPrecision, workload: Workload, target: Target, num_cores: int
    ) -> None:
        self.network, self.precision, self.target, self.num_cores = network, precision, target, num_cores
        self.workload = workload
        self.is_large = False
        """True if sessions take much memory."""
        self._runs: dict[tuple[GraphPrecision, Configuration], RunModel] = {}
        self._networks: dict[GraphPrecision, AnyNetwork] = {}
        self._samples: dict[int, list[tuple[float, list[Arrays]]]] = {}
        num_callers = 1 if target.single_batch else num_cores
        large_enough = MIN_BATCHES * num_callers * max(target.batch_tokens) / workload.num_tokens
        self.workload = workload.scaled(min(1.0, large_enough))
        tried = self.workload.num_tokens / workload.num_tokens
        long_enough = tried * PASS_S / self.seconds(default_configuration(target))
        self.workload = workload.scaled(max(long_enough, large_enough))
        self._samples.clear()
        self.pass_s = self.seconds(default_configuration(target))
        """Duration of one pass in the default configuration, in seconds."""

    def add(self, network: AnyNetwork, precision: GraphPrecision) -> None:
        """Build the graphs of one precision from another network, such as one with smoothing factors."""
        self._networks[precision] = network

    def seconds(self, configuration: Configuration, number: int = 0, precision: GraphPrecision | None = None) -> float:
        """Return the duration of one pass over the workload, in seconds.

        Args:
            number: number of the pass; passes of the same number have the same sequences in every configuration.
            precision: None for the timer's own.
        """
        cap, key = configuration.execution.max_batch_tokens, (precision or self.precision, configuration.session_key())
        if cap not in self._samples:
            self._samples[cap] = self.workload.samples(cap)
        if is_new := key not in self._runs:
            network = self._networks.get(key[0], self.network)
            graph = build_graph(network, key[0], configuration.variant)
            self.is_large |= graph.num_bytes >= LARGE_BYTES
            self._runs[key] = graph_run(graph, execution=configuration.execution)
        num_callers = self.num_cores // configuration.execution.num_threads
        scale, batches = self._samples[cap][number % len(self._samples[cap])]
        if is_new:  # warm-up; the first batch has the longest sequences
            run_all(self._runs[key], batches[:1] * num_callers, num_callers)
        return scale * run_all(self._runs[key], batches, num_callers)

    def close_sessions(self, *, keep: Iterable[Configuration] = ()) -> None:
        """Close all sessions except those of some configurations."""
        kept = {(self.precision, configuration.session_key()) for configuration in keep}
        self._runs = {key: run for key, run in self._runs.items() if key in kept}
