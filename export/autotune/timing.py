"""How long a network takes for a workload, in any form and however it is run."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from export.autotune.workload import Arrays, Workload, run_all, timed
from export.choice import Choice, default_choice, session_of
from export.graph import build_graph
from export.network import Network
from export.session import ort_run
from export.targets import Target
from export.variant import Numbers
from tasks.batching import RunModel

PASS_S = 0.1
"""Seconds of one measurement, at least."""
BATCHES = 1
"""And how many of the largest batches there are for each that runs at a time."""


class Stopwatch:
    """Times choices on a workload, of which it takes as much or as often as a measurement is to last."""

    def __init__(self, network: Network, numbers: Numbers, workload: Workload, target: Target, num_cores: int) -> None:
        self.network, self.numbers, self.num_cores = network, numbers, num_cores
        self.workload = workload
        self._runs: dict[tuple[Numbers, Choice], RunModel] = {}
        self._batches: dict[int, list[Arrays]] = {}
        wanted = PASS_S / self.seconds(default_choice(target))
        num_callers = 1 if target.one_batch else num_cores
        enough = BATCHES * num_callers * max(target.batch_tokens) / workload.num_tokens
        self.workload = workload.scaled(max(wanted, enough))
        self._batches.clear()
        self.pass_s = self.seconds(default_choice(target))
        """Seconds of one pass, about."""

    def seconds(self, choice: Choice, numbers: Numbers | None = None) -> float:
        """One pass over the workload.

        Args:
            numbers: others than those that choices are made for.
        """
        cap, key = choice.execution.max_batch_tokens, (numbers or self.numbers, session_of(choice))
        if cap not in self._batches:
            self._batches[cap] = self.workload.batches(cap)
        if is_new := key not in self._runs:
            graph = build_graph(self.network, numbers or self.numbers, choice.form)
            self._runs[key] = ort_run(graph, execution=choice.execution)
        callers = self.num_cores // choice.execution.num_threads
        one_pass = partial(run_all, self._runs[key], self._batches[cap], callers)
        if is_new:
            one_pass()  # which is slower
        return one_pass()

    def timed(self, choices: Iterable[Choice], rounds: int, **options: Any) -> dict[Choice, float]:
        """Seconds of each, in turns.

        Args:
            options: those of `race`.
        """
        return timed({choice: partial(self.seconds, choice) for choice in choices}, rounds, **options)

    def free(self, *, but: Iterable[Choice] = ()) -> None:
        """Close the sessions of all choices but some."""
        kept = {(self.numbers, session_of(choice)) for choice in but}
        self._runs = {key: run for key, run in self._runs.items() if key in kept}
