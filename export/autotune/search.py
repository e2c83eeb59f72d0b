"""Which form of a graph, run how, is the fastest here: found by trying.

One choice after the other (the attention, the norms, the load-time optimisers, the batches, the threads) is tried with
what was best so far, in turns with it. In the end, what was nearly as fast is tried together. Of what can hardly be
told from the fastest there, the one most like the default is taken: a few percent are noise, or true of this machine
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import inf
from operator import itemgetter
from typing import Any

from export.autotune.timing import Stopwatch
from export.autotune.workload import Workload, timed
from export.choice import Choice, default_choice, session_of, shown
from export.network import Network
from export.reporter import SILENT, Stages
from export.session import starts
from export.targets import TARGETS, Target
from export.variant import Numbers

ROUNDS, ENOUGH_S, TOGETHER_S = 7, 0.7, 2.0
"""How often each is measured: 7 times at least, and more as long as it takes no longer than this; in the end longer,
since that is what decides."""
LOST = 1.1
"""Times the fastest: what takes longer is measured no more."""
CLOSE = 0.97
"""Share of the highest speed with which a value is tried again, together with others, and in the end may be chosen."""
NUM_FINALISTS, NUM_SESSIONS = 6, 5
"""Of those, and in how many sessions at once: each has the weights in memory. Two more are as the default, in all or in
what does not matter."""
TOGETHER = "together"
"""Name of the last trials of choices; the values are choices in words."""
NUMBERS = "numbers"
"""Name of the trials that compare numbers in the form that was chosen."""


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
    mean_length: float
    """Of the sequences that it was timed on, in tokens."""


def tune(
    network: Network,
    numbers: Numbers,
    workload: Workload,
    *,
    target: Target = TARGETS["cpu"],
    num_cores: int,
    beside: Sequence[Numbers] = (),
    stages: Stages = SILENT,
) -> tuple[Choice, list[Trial]]:
    """Try what there is.

    Args:
        target: of the machine at hand.
        num_cores: those that the server will have.
        beside: other numbers that are timed with what is chosen, to tell what the numbers gain.
        stages: is told what was tried.

    Returns:
        What was chosen, and all that was tried, in order.
    """
    watch, usual = Stopwatch(network, numbers, workload, target, num_cores), default_choice(target)
    best, trials = usual, list[Trial]()
    for name, values in _alternatives(target, numbers, num_cores).items():
        choices = {value: best.changed(name, value) for value in values}
        trials += (found := _try(watch, name, _passes(watch, choices), stages, enough_s=ENOUGH_S))
        best = choices[_fastest(found)]
        watch.free(but=[best])
    hopeful = [choice for choice in (*_finalists(best, trials), _plainest(best, usual, trials)) if choice != usual]
    finalists = {choice.changes(usual): choice for choice in [*hopeful, usual]}
    trials += (found := _try(watch, TOGETHER, _passes(watch, finalists), stages, enough_s=TOGETHER_S))
    winner = min((trial for trial in found if trial.ratio >= CLOSE), key=lambda trial: _price(trial, finalists, usual))
    chosen, speed = finalists[winner.value], winner.tokens_per_s
    gain = f"{winner.value}; {speed / found[-1].tokens_per_s:.2f} times as fast as the default"
    stages.say(f"chosen: {'the default' if chosen == usual else gain}; {speed:,.0f} tokens/s")
    watch.free(but=[chosen])
    if beside:
        passes = {item.name: partial(watch.seconds, chosen, item) for item in (numbers, *beside)}
        trials += _try(watch, NUMBERS, passes, stages, enough_s=ENOUGH_S, lost=inf)
    return chosen, trials


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


def _passes(watch: Stopwatch, choices: Mapping[Any, Choice]) -> dict[Any, Callable[[], float]]:
    """What times choices, which are known by their values of something."""
    return {value: partial(watch.seconds, choice) for value, choice in choices.items()}


def _try(
    watch: Stopwatch,
    name: str,
    passes: Mapping[Any, Callable[[], float]],
    stages: Stages,
    *,
    enough_s: float,
    lost: float = LOST,
) -> list[Trial]:
    """Time values of something.

    Args:
        enough_s: seconds for each.
        lost: as `race` has it.
    """
    label = name.replace("_", " ")
    rounds = max(ROUNDS, int(enough_s / watch.pass_s))
    with stages.bar(label, unit="round", total=rounds) as bar:
        seconds = timed(passes, rounds, lost=lost, progress=bar.update)
    best = min(seconds.values())
    size, length = watch.workload.num_tokens, watch.workload.mean_length
    trials = [Trial(name, value, best / taken, size / taken, length) for value, taken in seconds.items()]
    results = [f"{shown(trial.value)} {100 * trial.ratio:.0f}%" for trial in trials]
    stages.say("\n    ".join([f"{label}:", *results]) if name == TOGETHER else f"{label}: {', '.join(results)}")
    return trials


def _fastest(trials: Sequence[Trial]) -> Any:
    """The value of the fastest."""
    return max(trials, key=lambda trial: trial.ratio).value


def _price(trial: Trial, finalists: Mapping[str, Choice], usual: Choice) -> tuple[int, float]:
    """How unlike the default a finalist is; of two that are so alike, the faster one is to be preferred."""
    return len(finalists[trial.value].differences(usual)), -trial.ratio


def _finalists(best: Choice, trials: Sequence[Trial]) -> list[Choice]:
    """The best so far, and combinations of what was nearly as fast: one of them may be faster yet."""
    found = {best: 1.0}
    for name in dict.fromkeys(trial.name for trial in trials):
        close = [trial for trial in trials if trial.name == name and trial.ratio >= CLOSE]
        combined = [
            (choice.changed(name, trial.value), known * trial.ratio)
            for choice, known in found.items()
            for trial in close
        ]
        found = dict(sorted(combined, key=itemgetter(1)))  # of equal choices, the one with the highest product stays
    hopeful = list(dict.fromkeys([best, *sorted(found, key=lambda choice: -found[choice])]))[:NUM_FINALISTS]
    sessions = list(dict.fromkeys(map(session_of, hopeful)))[:NUM_SESSIONS]
    return [choice for choice in hopeful if session_of(choice) in sessions]


def _plainest(best: Choice, usual: Choice, trials: Sequence[Trial]) -> Choice:
    """The best so far, but as usual in all that was nearly as fast so."""
    fields = {**vars(usual.form), **vars(usual.execution)}
    for trial in trials:
        if trial.ratio >= CLOSE and trial.value == fields[trial.name]:
            best = best.changed(trial.name, trial.value)
    return best
