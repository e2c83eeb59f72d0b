"""Which form of a graph, run how, is the fastest here: found by trying.

One choice after the other (the attention, the norms, the load-time optimisers, the batches, the threads) is tried with
what was best so far, in turns with it. In the end, what was nearly as fast is tried together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from export.graph import build_graph
from export.network import Network
from export.session import ort_run, starts
from export.stages import SILENT, Stages
from export.targets import PROVIDER_OPTIONS, TARGETS, Target
from export.variant import Form, Numbers
from export.workload import Arrays, Workload, race, run_all
from tasks.batching import Run
from tasks.manifest import Execution
from tasks.providers import TENSORRT

ROUNDS = 7
LOST = 1.05
"""Times the best: what takes longer is measured no more."""
PASS_S = 0.1
"""Seconds of one measurement, at least."""
BATCHES_A_CORE = 1
"""And how many of the largest batches there are for each core."""
CLOSE = 0.97
"""Share of the highest speed with which a value is tried again, together with others."""
NUM_FINALISTS, NUM_SESSIONS = 6, 5
"""Of those, and in how many sessions at once: each has the weights in memory."""
TOGETHER = "together"
"""Name of the last trials, whose values are choices in words."""


@dataclass(frozen=True)
class Choice:
    """A form and how to run it."""

    form: Form
    execution: Execution

    def changes(self, usual: Choice) -> str:
        """What is not as usual, in words."""
        own, others = ({**vars(choice.form), **vars(choice.execution)} for choice in (self, usual))
        changes = [f"{name.replace('_', ' ')}: {shown(value)}" for name, value in own.items() if value != others[name]]
        return ", ".join(changes) or "default"

    def changed(self, name: str, value: Any) -> Choice:
        """The same with another value of a field of either."""
        if name == "provider":
            execution = replace(self.execution, provider=value, provider_options=PROVIDER_OPTIONS[value])
            return Choice(self.form.as_standard() if value == TENSORRT else self.form, execution)
        if hasattr(self.form, name):
            form = self.form.changed(name, value)
            return replace(self, form=form.as_standard() if self.execution.provider == TENSORRT else form)
        return replace(self, execution=replace(self.execution, **{name: value}))


@dataclass(frozen=True)
class Trial:
    """What was measured of a choice."""

    name: str
    """Of the field that was changed."""
    value: Any
    ratio: float
    """Of its speed to that of the fastest it was tried with."""
    tokens_per_s: float
    """Without padding, on all cores."""


def shown(value: Any) -> str:
    """A value that is tried, in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


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
    stages: Stages = SILENT,
) -> tuple[Choice, list[Trial]]:
    """Try what there is.

    Args:
        target: of the machine at hand.
        num_cores: those that the server will have.
        stages: is told what was tried.

    Returns:
        The fastest choice, and all that was tried, in order.
    """
    watch, usual = Stopwatch(network, numbers, workload, target, num_cores), default_choice(target)
    best, trials = usual, list[Trial]()
    for name, values in _alternatives(target, numbers, num_cores).items():
        choices = {value: best.changed(name, value) for value in values}
        trials += (found := _try(watch, name, choices, stages))
        best = choices[_fastest(found)]
        watch.free(but=[best])
    finalists = {choice.changes(usual): choice for choice in [*_finalists(best, trials), usual]}
    finalists["default"] = finalists.pop("default")  # the last
    trials += (found := _try(watch, TOGETHER, finalists, stages))
    before, after = found[-1].tokens_per_s, max(trial.tokens_per_s for trial in found)
    stages.say(f"chosen: {_fastest(found)}; {after:,.0f} tokens/s, {after / before:.2f} times the default's speed")
    return finalists[_fastest(found)], trials


def all_choices(target: Target, numbers: Numbers, num_cores: int) -> list[Choice]:
    """Whatever alternatives can be combined to."""
    known = _alternatives(target, numbers, num_cores)
    choices = []
    for values in product(*known.values()):
        choice = default_choice(target)
        for name, value in zip(known, values, strict=True):
            choice = choice.changed(name, value)
        choices.append(choice)
    return list(dict.fromkeys(choices))


def _alternatives(target: Target, numbers: Numbers, num_cores: int) -> dict[str, list[Any]]:
    known = target.alternatives(numbers, num_cores)
    return {name: [value for value in values if name != "provider" or starts(value)] for name, values in known}


def _try(watch: Stopwatch, name: str, choices: Mapping[Any, Choice], stages: Stages) -> list[Trial]:
    """Time choices, which are known by their values of something."""
    label = name.replace("_", " ")
    with stages.bar(label, unit="round", total=ROUNDS) as bar:
        seconds = watch.least(choices.values(), ROUNDS, lost=LOST, progress=bar.update)
    least = min(seconds.values())
    speeds = {choice: watch.workload.num_tokens / value for choice, value in seconds.items()}
    trials = [Trial(name, value, least / seconds[choice], speeds[choice]) for value, choice in choices.items()]
    stages.say(f"{label}: {', '.join(f'{shown(trial.value)} {100 * trial.ratio:.0f}%' for trial in trials)}")
    return trials


def _fastest(trials: Sequence[Trial]) -> Any:
    """The value of the fastest."""
    return max(trials, key=lambda trial: trial.ratio).value


def _finalists(best: Choice, trials: Sequence[Trial]) -> list[Choice]:
    """Combinations of what was nearly as fast as the fastest: one of them may be faster yet."""
    found = {best: 1.0}
    for trial in trials:
        if trial.ratio >= CLOSE:
            found |= {choice.changed(trial.name, trial.value): trial.ratio * known for choice, known in found.items()}
    hopeful = sorted(found, key=lambda choice: -found[choice])[:NUM_FINALISTS]
    sessions = list(dict.fromkeys(map(_session_of, hopeful)))[:NUM_SESSIONS]
    return [choice for choice in hopeful if _session_of(choice) in sessions]


class Stopwatch:
    """Times choices on a workload, of which it takes as much or as often as a measurement is to last."""

    def __init__(self, network: Network, numbers: Numbers, workload: Workload, target: Target, num_cores: int) -> None:
        self.network, self.numbers, self.num_cores = network, numbers, num_cores
        self.workload = workload
        self._runs: dict[Choice, Run] = {}
        self._batches: dict[int, list[Arrays]] = {}
        self.seconds(default_choice(target))  # the first pass is slower
        wanted = PASS_S / self.seconds(default_choice(target))
        enough = BATCHES_A_CORE * num_cores * max(target.batch_tokens) / workload.num_tokens
        self.workload = workload.scaled(max(wanted, enough))
        self._batches.clear()

    def seconds(self, choice: Choice) -> float:
        """One pass over the workload."""
        cap = choice.execution.max_batch_tokens
        if cap not in self._batches:
            self._batches[cap] = self.workload.batches(cap)
        return run_all(self._run(choice), self._batches[cap], self.num_cores // choice.execution.num_threads)

    def least(self, choices: Iterable[Choice], rounds: int, **options: Any) -> dict[Choice, float]:
        """Seconds of each in its best round: what disturbs a measurement makes it longer, never shorter.

        Args:
            options: those of `race`.
        """
        found = race({choice: partial(self.seconds, choice) for choice in choices}, rounds, **options)
        return {choice: min(seconds) for choice, seconds in found.items()}

    def free(self, *, but: Iterable[Choice] = ()) -> None:
        """Close the sessions of all choices but some."""
        kept = {_session_of(choice) for choice in but}
        self._runs = {key: run for key, run in self._runs.items() if key in kept}

    def _run(self, choice: Choice) -> Run:
        key = _session_of(choice)
        if key not in self._runs:
            graph = build_graph(self.network, self.numbers, choice.form)
            self._runs[key] = ort_run(graph, execution=choice.execution)
        return self._runs[key]


def _session_of(choice: Choice) -> Choice:
    """What makes a session; the cap of batches makes no other."""
    return choice.changed("max_batch_tokens", 1)
