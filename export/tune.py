"""Which form of a graph, run how, is the fastest here: found by trying.

One choice after the other (the attention, the norms, the load-time optimisers, the batches, the threads) is tried with
what was best so far, in turns with it, and kept where it is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from export.graph import build_graph
from export.network import Network
from export.session import ort_run, starts
from export.targets import PROVIDER_OPTIONS, TARGETS, Target
from export.variant import Form, Numbers
from export.workload import Workload, interleaved, run_all
from tasks.batching import Run
from tasks.manifest import Execution
from tasks.providers import TENSORRT

Progress = Callable[[str], object]
ROUNDS = 5
PASS_S = 0.3
"""Seconds that one measurement may take."""
WORTH = 0.99
"""Share of the time that a change may leave to be kept: less is noise."""


@dataclass(frozen=True)
class Choice:
    """A form and how to run it."""

    form: Form
    execution: Execution

    def value(self, name: str) -> Any:
        """Of a field of either."""
        return getattr(self.form, name) if hasattr(self.form, name) else getattr(self.execution, name)

    def changed(self, name: str, value: Any) -> Choice:
        """The same with another value of a field of either."""
        if name == "provider":
            form = self.form.as_standard() if value == TENSORRT else self.form
            return Choice(form, replace(self.execution, provider=value, provider_options=PROVIDER_OPTIONS[value]))
        if name == "standard" and value:
            return replace(self, form=self.form.as_standard())
        if hasattr(self.form, name):
            return replace(self, form=replace(self.form, **{name: value}))
        return replace(self, execution=replace(self.execution, **{name: value}))


@dataclass(frozen=True)
class Trial:
    """What was measured of a choice."""

    name: str
    """Of the field that was changed."""
    value: Any
    ratio: float
    """Of its speed to that of the best choice before it."""


def default_choice(target: Target = TARGETS["cpu"]) -> Choice:
    """What is often fast."""
    return Choice(target.form, target.execution)


def tune(
    network: Network,
    numbers: Numbers,
    workload: Workload,
    *,
    target: Target = TARGETS["cpu"],
    num_cores: int,
    progress: Progress = lambda line: None,
) -> tuple[Choice, list[Trial]]:
    """Try what there is.

    Args:
        target: of the machine at hand.
        num_cores: those that the server will have.
        progress: called with a line about each choice.

    Returns:
        The fastest choice, and all that was tried, in order.
    """
    tuner = _Tuner(network, numbers, workload, target, num_cores)
    trials: list[Trial] = []
    for name, values in target.alternatives(numbers, num_cores):
        values = [value for value in values if name != "provider" or starts(value)]
        found = tuner.try_all(name, values)
        progress(_in_words(found, tuner.best.value(name)))
        trials += found
    return tuner.best, trials


def _in_words(trials: Sequence[Trial], chosen: Any) -> str:
    """A line about one choice: what was tried with its speed beside what was best before, and what is kept."""
    tried = ", ".join(f"{trial.value} {trial.ratio:.2f}x" for trial in trials)
    return f"{trials[0].name.replace('_', ' ')}: {tried}; kept: {chosen}"


class _Tuner:
    def __init__(self, network: Network, numbers: Numbers, workload: Workload, target: Target, num_cores: int) -> None:
        self.network, self.numbers, self.num_cores = network, numbers, num_cores
        self.best = default_choice(target)
        self.runs: dict[Choice, Run] = {}
        self.workload = workload
        seconds = self.measure(self.best)
        share = PASS_S / seconds
        if share < 1:
            self.workload = replace(workload, lengths=workload.lengths[:: max(1, round(1 / share))])

    def try_all(self, name: str, values: Sequence[Any]) -> list[Trial]:
        choices = {value: self.best.changed(name, value) for value in values}
        seconds = interleaved({value: partial(self.measure, choice) for value, choice in choices.items()}, ROUNDS)
        before = next(seconds[value] for value, choice in choices.items() if choice == self.best)
        fastest = min(seconds, key=seconds.__getitem__)
        if seconds[fastest] < WORTH * before:
            self.best = choices[fastest]
        self.runs = {key: run for key, run in self.runs.items() if key == _session_of(self.best)}  # free the others
        return [Trial(name, value, before / seconds[value]) for value in choices]

    def measure(self, choice: Choice) -> float:
        execution = choice.execution
        batches = self.workload.batches(execution.max_batch_tokens)
        return run_all(self.run(choice), batches, self.num_cores // execution.num_threads)

    def run(self, choice: Choice) -> Run:
        """Of the choice's session."""
        key = _session_of(choice)
        if key not in self.runs:
            graph = build_graph(self.network, self.numbers, choice.form).SerializeToString()
            self.runs[key] = ort_run(graph, execution=choice.execution)
        return self.runs[key]


def _session_of(choice: Choice) -> Choice:
    """What makes a session; the cap of batches makes no other."""
    return choice.changed("max_batch_tokens", 1)
