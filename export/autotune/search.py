"""Search for the fastest configuration of a graph on this machine.

One field after the other (attention, norms, load-time optimisers, batch size, threads) is raced with the best values
found so far, for each engine. In the end, combinations of everything nearly as fast race as finalists, those of all
engines together. Among the finalists about as fast as the fastest, the one closest to the default wins: a small
difference is noise, or specific to this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from operator import itemgetter
from typing import Any

from export.autotune.timing import BUSY, Timer, fitted_seconds, race, slowdown
from export.autotune.workload import Workload
from export.graph import AnyNetwork
from export.optimum_export.exporter import ExportedNetwork
from export.reporter import SILENT, Reporter
from export.session import check_provider, is_available
from export.targets import TARGETS, default_configuration
from export.variant import Configuration, GraphPrecision, Target, format_value
from tasks.base import first_line
from tasks.bundle.manifest import Precision

MIN_ROUNDS, SLOW_ROUNDS, SLOW_S = 7, 3, 3.0
"""Rounds of a race: at least 7; fewer, but at least 3, where 7 take longer than SLOW_S for each candidate. Long passes
need fewer repetitions, as they average over moments of noise."""
FIELD_S, FINALISTS_S = 0.5, 2.5
"""More rounds follow while each candidate takes less than FIELD_S, or FINALISTS_S for finalists."""
MAX_SLOWDOWN = 1.1
"""Candidates slower than this multiple of the fastest drop out of a race; in early rounds, slower than a larger one."""
NEARLY_AS_FAST = 0.97
"""Minimum fraction of the highest speed, for a value to be combined with others."""
ABOUT_AS_FAST = 0.98
"""Minimum fraction of the highest speed, for a finalist to win."""
NUM_FINALISTS, NUM_SESSIONS = 6, 5
"""Maximum number of finalists, and of their sessions, each of which holds packed weights in memory. Two finalists are
added: the default, and the best one with default values wherever these are nearly as fast."""
HEAT = 3
"""Candidates that race at a time where their sessions take much memory; the fastest goes on to the next heat."""
FINALISTS = "finalists"
"""Name of the trials of the final race; their values are descriptions of configurations."""
PRECISION = "precision"
"""Name of the trials that compare precisions in the chosen configuration."""


@dataclass(frozen=True)
class Trial:
    """One measured candidate."""

    name: str
    """Field that was varied, after the name of a rival engine; `FINALISTS` or `PRECISION`."""
    value: Any
    ratio: float
    """Speed relative to the fastest of the same race."""
    tokens_per_s: float
    """Throughput on all cores, without padding."""
    mean_length: float
    """Mean length of the sequences, in tokens."""


@contextmanager
def left_out_if_it_fails(rival: Target, reporter: Reporter) -> Iterator[None]:
    """Print why an alternative is left out if its engine or graphs fail in this block."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        reporter.say(f"{rival.provider} is left out: {first_line(error)}")


def able_targets(
    targets: Sequence[Target], network: AnyNetwork, precision: GraphPrecision, reporter: Reporter = SILENT
) -> list[Target]:
    """Return the targets that run the graphs of a network, as they run them, without rivals that do not start.

    Raises:
        ValueError: when the only one does not run them.
    """
    is_exported = isinstance(network, ExportedNetwork)
    able = [item for item in targets if item.runs(precision) and not (is_exported and item.engine != "onnxruntime")]
    if not able:
        what = "a graph that Optimum exported" if is_exported else precision.name
        raise ValueError(f"{targets[0].flag} does not run {what}; use --engine onnxruntime")
    first, *rivals = able if network.pads else [item.without_padding() for item in able]
    kind: Precision = "int8" if precision.is_int8 else "fp32"
    first.check(kind)
    started = [first]
    for rival in rivals:
        with left_out_if_it_fails(rival, reporter):
            rival.check(kind)
            check_provider(rival.execution)
            started.append(rival)
    return started


def autotune(
    network: AnyNetwork,
    precision: GraphPrecision,
    workload: Workload,
    *,
    target: Target = TARGETS["cpu"],
    rivals: Sequence[Target] = (),
    num_cores: int,
    compare_with: Sequence[GraphPrecision] = (),
    reporter: Reporter = SILENT,
) -> tuple[Configuration, list[Trial]]:
    """Find the fastest configuration.

    Args:
        rivals: the same machine with other engines, which compete; those that fail are left out.
        num_cores: number of cores that the server will use.
        compare_with: other precisions to time in the chosen configuration, to report the speedup.

    Returns:
        The chosen configuration, and all trials in order.
    """
    timer, default = Timer(network, precision, workload, target, num_cores), default_configuration(target)
    candidates, trials = _search(timer, target, reporter)
    for rival in rivals:
        with left_out_if_it_fails(rival, reporter):
            found, raced = _search(timer, rival, reporter)
            candidates += found
            trials += [replace(item, name=f"{rival.provider} {item.name}") for item in raced]
    finalists = {item.describe(default): item for item in candidates if item != default}
    finalists[default.describe(default)] = default
    timer.close_sessions()
    try:
        raced = _race_configurations(timer, FINALISTS, finalists, reporter, min_s=FINALISTS_S)
    except (ValueError, RuntimeError) as error:
        own = {name: item for name, item in finalists.items() if item.execution.engine == target.engine}
        if len(own) == len(finalists):
            raise
        reporter.say(f"{', '.join(item.provider for item in rivals)} is left out: {first_line(error)}")
        raced = _race_configurations(timer, FINALISTS, own, reporter, min_s=FINALISTS_S)
    trials += raced
    chosen, winner = _choose(finalists, raced, default)
    speed = winner.tokens_per_s
    gain = f"{winner.value}; {speed / raced[-1].tokens_per_s:.2f} times as fast as the default"
    reporter.say(f"chosen: {'the default' if chosen == default else gain}; {speed:,.0f} tokens/s")
    timer.close_sessions(keep=[chosen])
    if compare_with:
        in_fp32 = chosen.with_value("floats", "fp32")
        configurations = {item: chosen if item.is_int8 else in_fp32 for item in (precision, *compare_with)}
        try:
            trials += _race_precisions(timer, configurations, reporter, min_s=FIELD_S)
        except (ValueError, RuntimeError) as error:  # the comparison is for the report only
            reporter.say(f"not compared with {', '.join(item.name for item in compare_with)}: {first_line(error)}")
    if chosen.execution.engine != "onnxruntime" and target.engine == "onnxruntime":
        others = [trial for trial in raced if finalists[trial.value].execution.engine == "onnxruntime"]
        chosen = replace(chosen, fallback=_choose(finalists, others, default)[0])
    return chosen, trials


def _search(timer: Timer, target: Target, reporter: Reporter) -> tuple[list[Configuration], list[Trial]]:
    """Race one field after the other of a target.

    Returns:
        Candidates for the final race, and all trials.
    """
    best = default = default_configuration(target)
    trials = list[Trial]()
    if target.engine != timer.target.engine:
        reporter.say(f"in {target.provider}:")
    for name, values in target.alternatives(timer.precision, timer.num_cores):
        if isinstance(timer.network, ExportedNetwork) and name in vars(default.variant):
            continue  # its graph has no variants
        if name == "provider":
            values = list(filter(is_available, values))
        configurations = {value: best.with_value(name, value) for value in values}
        trials += (raced := _race_configurations(timer, name, configurations, reporter, min_s=FIELD_S))
        best = configurations[max(raced, key=lambda trial: trial.ratio).value]
        timer.close_sessions(keep=[best])
    closest = best  # with default values wherever these were nearly as fast
    for trial in trials:
        if trial.ratio >= NEARLY_AS_FAST and trial.value == default.values()[trial.name]:
            closest = closest.with_value(trial.name, trial.value)
    return [*_combinations(best, trials), closest, default], trials


def _race_precisions(
    timer: Timer, configurations: Mapping[GraphPrecision, Configuration], reporter: Reporter, *, min_s: float
) -> list[Trial]:
    """Race graphs of different precisions; none drops out, as the ratios of all are reported."""
    passes = {item.name: partial(timer.seconds, chosen, precision=item) for item, chosen in configurations.items()}
    times = _race(timer, PRECISION, passes, reporter, min_s=min_s, max_slowdown=inf)
    return _trials(timer, PRECISION, fitted_seconds(times), reporter)


def _choose(
    finalists: Mapping[str, Configuration], trials: Sequence[Trial], default: Configuration
) -> tuple[Configuration, Trial]:
    """Return, of the finalists about as fast as the fastest of these trials, the closest to the default."""
    fastest = max(trial.ratio for trial in trials)
    contenders = [trial for trial in trials if trial.ratio >= ABOUT_AS_FAST * fastest]
    winner = min(contenders, key=lambda trial: (len(finalists[trial.value].differences(default)), -trial.ratio))
    return finalists[winner.value], winner


def compare_precisions(
    graphs: Sequence[tuple[AnyNetwork, GraphPrecision]],
    workload: Workload,
    *,
    target: Target = TARGETS["cpu"],
    num_cores: int,
    reporter: Reporter = SILENT,
) -> dict[str, float]:
    """Time graphs of different precisions alternately, in the target's default configuration.

    Returns:
        The time of each by the name of its precision, relative to the fastest.
    """
    timer = Timer(*graphs[0], workload, target, num_cores)
    for network, precision in graphs:
        timer.add(network, precision)
    configurations = {precision: default_configuration(target) for _, precision in graphs}
    trials = _race_precisions(timer, configurations, reporter, min_s=FINALISTS_S)
    return {trial.value: 1 / trial.ratio for trial in trials}


def _race_configurations(
    timer: Timer, name: str, configurations: Mapping[Any, Configuration], reporter: Reporter, *, min_s: float
) -> list[Trial]:
    """Race configurations by value, in heats if their sessions take much memory, and report the results."""
    waiting, seconds, slower = dict(configurations), dict[Any, float](), 0.0
    size = HEAT if timer.is_large else len(waiting)
    while waiting:
        heat = {value: waiting.pop(value) for value in [*waiting][: size - bool(seconds)]}
        if seconds:
            leader = min(seconds, key=seconds.__getitem__)
            timer.close_sessions(keep=[configurations[leader]])
            heat[leader] = configurations[leader]
        passes = {value: partial(timer.seconds, configuration) for value, configuration in heat.items()}
        times = _race(timer, name, passes, reporter, min_s=min_s)
        found, slower = fitted_seconds(times), max(slower, slowdown(times))
        drift = seconds[leader] / found[leader] if seconds else 1.0
        seconds |= {value: taken * drift for value, taken in found.items()}
    if name == FINALISTS and slower > BUSY:
        reporter.say(f"note: this machine was busy ({slower:.0%} slower than at its best); tune again when it is quiet")
    return _trials(timer, name, {value: seconds[value] for value in configurations}, reporter)


def _race(
    timer: Timer,
    name: str,
    passes: Mapping[Any, Callable[[int], float]],
    reporter: Reporter,
    *,
    min_s: float,
    max_slowdown: float = MAX_SLOWDOWN,
) -> dict[Any, list[float]]:
    """Race candidates and return the seconds of each by round.

    Args:
        passes: measurement of each value in a round, by the number of the round.
        min_s: total time for each candidate, in seconds.
    """
    rounds = max(min(MIN_ROUNDS, int(SLOW_S / timer.pass_s)), SLOW_ROUNDS, int(min_s / timer.pass_s))
    with reporter.bar(name.replace("_", " "), unit="round", total=rounds) as bar:
        return race(passes, rounds, max_slowdown=max_slowdown, progress=bar.update)


def _trials(timer: Timer, name: str, seconds: Mapping[Any, float], reporter: Reporter) -> list[Trial]:
    """Return the trials of a race, and report them."""
    label, fastest = name.replace("_", " "), min(seconds.values())
    num_tokens, length = timer.workload.num_tokens, timer.workload.mean_length
    trials = [Trial(name, value, fastest / taken, num_tokens / taken, length) for value, taken in seconds.items()]
    results = [f"{format_value(trial.value)} {100 * trial.ratio:.0f}%" for trial in trials]
    reporter.say("\n    ".join([f"{label}:", *results]) if name == FINALISTS else f"{label}: {', '.join(results)}")
    return trials


def _combinations(best: Configuration, trials: Sequence[Trial]) -> list[Configuration]:
    """Return the best configuration and combinations of nearly as fast values, highest product of speeds first."""
    scores = {best: 1.0}
    for name in dict.fromkeys(trial.name for trial in trials):
        close = [trial for trial in trials if trial.name == name and trial.ratio >= NEARLY_AS_FAST]
        combined = [
            (configuration.with_value(name, trial.value), score * trial.ratio)
            for configuration, score in scores.items()
            for trial in close
        ]
        scores = dict(sorted(combined, key=itemgetter(1)))  # of equal configurations, the highest score remains
    ranked = list(dict.fromkeys([best, *sorted(scores, key=lambda item: -scores[item])]))[:NUM_FINALISTS]
    sessions = list(dict.fromkeys(item.session_key() for item in ranked))[:NUM_SESSIONS]
    return [item for item in ranked if item.session_key() in sessions]
