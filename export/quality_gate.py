"""Quality gate: choose a precision whose quality stays within limits.

int8 is tried as static, dynamic and SmoothQuant int8, in this order. Static comes first because its outputs do not
depend on the rest of the batch. `--quality default` takes the first within the limits; for vectors, whose nearest
neighbours a small error changes, it takes SmoothQuant instead if that is closer to PyTorch and at most 5% slower.
`--quality high` has closer limits, also tries int8 with the most sensitive layers in fp32, times everything within the
limits, and takes what is closest to PyTorch among graphs at most 5% slower than the fastest. With `mixed`, as many
layers as the limits require stay in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Annotated, Literal

from export.agreement import SAME_NEAREST, SAME_PREDICTION
from export.graph import AnyNetwork, build_graph
from export.network import Network
from export.quality import REFERENCE, Evaluator, Quality
from export.session import graph_run, on_all_cores
from export.variant import Configuration, GraphPrecision, Target
from tasks.batching import RunModel
from tasks.bundle.manifest import Precision
from tasks.embedding import Embedding
from tasks.masked_lm import MaskedLM
from tasks.sparse_embedding import SparseEmbedding
from tasks.token_embedding import TokenEmbedding
from training.command_line.bounds import FRACTION, NOT_NEGATIVE, POSITIVE

MAX_TIME = 1.05
"""Longest time of a graph that is taken for its closeness, relative to the fastest one within the limits."""
_NUM_NAMED = 3
"""Number of examples and layers that an error names."""
_NUM_BISECTIONS = 2
"""Number of bisection steps for the number of fp32 layers; each costs one evaluation."""
_FEW_LAYERS = (1, 2)
"""Numbers of fp32 layers that `--quality high` tries; more would take longer than `MAX_TIME`."""


class QualityError(ValueError):
    """Raised when the quality of a graph is below the limits."""


LEVELS: Mapping[str, Mapping[str, float]] = {
    "default": {"max_drop": 0.5, "min_cosine": 0.99, "min_same_nearest": 0, "min_same_prediction": 0},
    "high": {"max_drop": 0.25, "min_cosine": 0.995, "min_same_nearest": 0.95, "min_same_prediction": 0.98},
}
"""Limits of each quality level, for flags that are not given."""


@dataclass(frozen=True)
class Miss:
    """A limit that a quality misses, and the value of its flag that would accept the quality."""

    reason: str
    flag: str
    limit: float
    accepted: float


@dataclass(frozen=True, kw_only=True)
class QualityLimits:
    """Limits that a graph must keep."""

    quality: Literal["default", "high"] = "default"
    """int8: `default` takes the first graph within the limits. `high` has closer limits, also keeps one or two
    sensitive layers in fp32, and takes the graph closest to PyTorch among those nearly as fast as the fastest (rules:
    docs/reference/export-rules.md)."""
    atol: Annotated[float, POSITIVE] = 1e-4
    """Largest difference of an fp32 output from PyTorch's; proportional for values beyond 10."""
    max_drop: Annotated[float | None, NOT_NEGATIVE] = None
    """int8 and fp16: largest drop of the task's first score, in points. Default: 0.5; 0.25 with `--quality high`."""
    min_cosine: Annotated[float | None, FRACTION] = None
    """int8 and fp16: lowest mean cosine to PyTorch's outputs, for embeddings, masked LM, and without labels. Default:
    0.99; 0.995 with `--quality high`."""
    min_same_nearest: Annotated[float | None, FRACTION] = None
    """int8 and fp16, embeddings: lowest fraction of the evaluation texts whose nearest neighbour is PyTorch's; needs
    100 different texts. Default: 0; 0.95 with `--quality high`."""
    min_same_prediction: Annotated[float | None, FRACTION] = None
    """int8 and fp16: lowest fraction of labels, tags, choices, answers or tokens that are PyTorch's; needs 100
    examples. Default: 0; 0.98 with `--quality high`."""

    def check_judged(self, quality: Quality) -> None:
        """Raise for a limit that was given, but that the evaluation cannot judge.

        Raises:
            QualityError: naming the flag and what it needs.
        """
        needs = {
            SAME_NEAREST: "an embedding, and 100 different texts to evaluate on",
            SAME_PREDICTION: "a task with labels, tags, choices, answers or tokens, and 100 examples to evaluate on",
        }
        for name, needed in needs.items():
            if getattr(self, f"min_{name}") and name not in quality.agreement:
                flag = f"--min-{name.replace('_', '-')}"
                raise QualityError(f"{flag} cannot be judged: it needs {needed}; give more --dev data, or leave it out")

    def misses(self, quality: Quality, reference: Quality, *, by_cosine: bool) -> Iterator[Miss]:
        """Yield the limits that a quality misses.

        Args:
            by_cosine: True to check the cosine in addition to scores.
        """
        max_drop, min_cosine = self._limit("max_drop"), self._limit("min_cosine")
        if reference.headline:
            name, before = reference.headline
            drop = round(100 * (before - quality.scores[name]), 6)  # avoids 0.3775 - 0.3725 > 0.005
            if not drop <= max_drop:
                yield Miss(f"{name} drops by {drop:.2f} points", "--max-drop", max_drop, -_rounded_down(-drop, 2))
        cosine = quality.mean_cosine
        if (by_cosine or not reference.headline) and not cosine >= min_cosine:
            reason = f"the mean cosine to PyTorch is {cosine:.4f}"
            yield Miss(reason, "--min-cosine", min_cosine, _rounded_down(cosine, 4))
        reasons = {
            SAME_NEAREST: "the nearest neighbour stays the same for {:.1f}% of texts",
            SAME_PREDICTION: "{:.1f}% of predictions stay the same",
        }
        for name, text in reasons.items():
            found, limit = quality.agreement.get(name, 1.0), self._limit(f"min_{name}")
            if not found >= limit:
                reason = text.format(_rounded_down(100 * found, 1))
                yield Miss(reason, f"--min-{name.replace('_', '-')}", limit, _rounded_down(found, 3))

    def _limit(self, name: str) -> float:
        """Return the given value of a limit, or that of the quality level."""
        given: float | None = getattr(self, name)
        return LEVELS[self.quality][name] if given is None else given


def _rounded_down(value: float, digits: int) -> float:
    return math.floor(value * 10**digits) / 10**digits if math.isfinite(value) else math.nan


@dataclass(frozen=True)
class Decision:
    """A precision, the network to write in it, and the qualities measured on the way."""

    network: AnyNetwork
    precision: GraphPrecision = field(default_factory=GraphPrecision)
    qualities: Mapping[str, Quality] = field(default_factory=dict)
    """Qualities by name; PyTorch comes first."""
    times: Mapping[str, float] = field(default_factory=dict)
    """Times of the precisions within the limits, relative to the fastest; empty if they were not compared."""

    @property
    def quality(self) -> Quality:
        """Quality of the chosen precision."""
        return self.qualities[self.precision.name]

    def shortfall(self, limits: QualityLimits) -> str:
        """Return how the precision misses the limits; empty if it meets them."""
        first = next(self._misses(limits), None)
        return f"{first.reason} ({first.flag} {first.limit})" if first else ""

    def accepting(self, limits: QualityLimits) -> str:
        """Return the flags with which the precision would meet the limits; empty if none can."""
        misses = list(self._misses(limits))
        if not all(miss.accepted >= 0 for miss in misses):  # NaN, or the opposite of PyTorch's outputs
            return ""
        return " ".join(f"{miss.flag} {miss.accepted:g}" for miss in misses)

    def _misses(self, limits: QualityLimits) -> Iterator[Miss]:
        return limits.misses(self.quality, self.qualities[REFERENCE], by_cosine=self._by_cosine)

    def closer_but_slower(self) -> str:
        """Describe the closest graph that took too long, and the flag that takes it; empty if there is none."""
        slow = [name for name, time in self.times.items() if time > MAX_TIME]
        name = max(slow, key=lambda name: self.qualities[name].closeness, default="")
        if not name or self.qualities[name].closeness <= self.quality.closeness:
            return ""
        between = _rounded_down((self.qualities[name].mean_cosine + self.quality.mean_cosine) / 2, 4)
        takes = self._by_cosine and self.quality.mean_cosine < between
        remedy = f"; --min-cosine {between:g} takes it" if takes else ""
        percent = 100 * (self.times[name] - 1)
        return f"{name} is closer to PyTorch, but {percent:.1f}% slower than the fastest (limit 5%{remedy})"

    @property
    def _by_cosine(self) -> bool:
        # Scores alone do not suffice, since applications use vectors and token probabilities directly.
        return isinstance(self.network.task, Embedding | MaskedLM | SparseEmbedding | TokenEmbedding)


Timer = Callable[[Sequence[Decision]], Mapping[str, float]]
"""Measures graphs alternately; returns the time of each by the name of its precision, relative to the fastest."""


def choose(
    network: AnyNetwork,
    precision: Precision,
    *,
    evaluator: Evaluator,
    limits: QualityLimits,
    smoothquant: Callable[[], Network] | None = None,
    mixed: bool = False,
    timer: Timer | None = None,
) -> Decision:
    """Choose a precision within the limits: fp16, or static, dynamic, SmoothQuant or mixed int8.

    Args:
        network: network to export. Static int8 needs its ranges.
        precision: `int8` or `fp16`.
        limits: limits that the chosen one must meet, and the rule to choose by.
        smoothquant: returns the network with smoothing factors; None to skip SmoothQuant.
        mixed: for int8, keep as many layers in fp32 as the limits require.
        timer: compares the times of candidates within the limits; None to choose by closeness alone.

    Raises:
        QualityError: with the loss, the examples that differ most, the most sensitive layers, and what would pass.
    """
    candidates = _candidates(network, precision, evaluator.target)
    tried = _measure(Decision(network), [GraphPrecision(), *candidates], evaluator, limits)[1:]
    limits.check_judged(tried[0].quality)
    first = _accepted(tried, limits)
    if precision == "fp16" and not first:
        remedies = [f"{flags} accepts it"] if (flags := tried[0].accepting(limits)) else []
        reason = f"graph rejected: with fp16 {tried[0].shortfall(limits)}"
        raise QualityError(f"{reason} ({', or '.join([*remedies, 'use fp32'])})")
    if precision == "fp16" and first:
        return first
    compares_smoothquant = smoothquant and isinstance(network.task, Embedding)
    if limits.quality == "default" and first and not compares_smoothquant:
        return first
    if smoothquant:
        smoothed = replace(tried[-1], network=smoothquant())
        (smoothed,) = _measure(smoothed, [GraphPrecision(matmul="SmoothQuant int8")], evaluator, limits)
        tried.append(smoothed)
        choices = [item for item in (first, smoothed) if item and not item.shortfall(limits)]
        if limits.quality == "default" and choices:
            return _time_and_choose(choices, tried, timer)
    best = _with_all(max(tried, key=_closeness), tried)
    layers = evaluator.most_sensitive_layers(best.network, best.precision.matmul)
    if limits.quality == "high":
        few = [replace(best.precision, fp32_layers=tuple(layers[:count])) for count in _FEW_LAYERS] if layers else []
        tried += _measure(best, few, evaluator, limits)
        if passing := [item for item in tried if not item.shortfall(limits)]:
            return _time_and_choose(passing, tried, timer)
        best = _with_all(best, tried)
    fewest = _keep_in_fp32(best, layers, evaluator, limits)
    if mixed and not fewest.shortfall(limits):
        return fewest
    raise QualityError(_rejection(tried, fewest, layers, limits, mixed=mixed))


def _time_and_choose(passing: Sequence[Decision], tried: Sequence[Decision], timer: Timer | None) -> Decision:
    """Time the decisions within the limits, and return the closest to PyTorch among those up to `MAX_TIME`."""
    times = timer(passing) if timer and len(passing) > 1 else {}
    fast = [item for item in passing if times.get(item.precision.name, 1) <= MAX_TIME]
    return replace(_with_all(max(fast, key=_closeness), tried), times=times)


def _closeness(decision: Decision) -> float:
    return decision.quality.closeness


def _accepted(tried: Sequence[Decision], limits: QualityLimits) -> Decision | None:
    """Return the first decision within the limits, with all qualities measured so far."""
    return next((_with_all(item, tried) for item in tried if not item.shortfall(limits)), None)


def _with_all(decision: Decision, tried: Sequence[Decision]) -> Decision:
    """Return a decision with the qualities of all that were tried; the last one has them."""
    return replace(decision, qualities=tried[-1].qualities)


def check_final_graph(
    decision: Decision, run: RunModel, configuration: Configuration, *, evaluator: Evaluator, limits: QualityLimits
) -> Decision:
    """Measure the written graph in its final configuration and return the decision with that quality.

    Raises:
        QualityError: if it misses the limits, although another graph variant met them.
    """
    max_batch_tokens = configuration.execution.max_batch_tokens
    runs = {decision.precision.name: run}
    qualities = evaluator.measure_runs("final check", runs, max_batch_tokens=max_batch_tokens)
    decision = replace(decision, qualities={**decision.qualities, **qualities})
    if reason := decision.shortfall(limits):
        remedies = "raise the limit" if decision.precision == GraphPrecision() else "raise the limit, or use fp32"
        raise QualityError(f"graph rejected: {decision.precision.name}, as served: {reason} ({remedies})")
    return decision


def judged_floats(decision: Decision, target: Target, *, evaluator: Evaluator, limits: QualityLimits) -> Target:
    """Return a target that also times bf16 between int8 matrix products, if the CPU does it and quality allows it.

    Its graph must be within the limits, and agree with PyTorch nearly as often as the same graph in fp32: a score can
    stay the same while many predictions change.
    """
    rival = target.with_bf16()
    if rival is target or not decision.precision.is_int8:
        return target
    graph = build_graph(decision.network, decision.precision, target.variant)
    execution = on_all_cores(target.execution)
    runs: dict[str, RunModel] = {
        name: graph_run(graph, execution=replace(execution, floats=name)) for name in rival.floats
    }
    tokens = execution.max_batch_tokens
    qualities = evaluator.measure_runs("evaluating bf16", runs, max_batch_tokens=tokens)
    fp32, bf16 = (replace(decision, qualities={**qualities, decision.precision.name: qualities[name]}) for name in runs)
    reason = bf16.shortfall(limits)
    if not reason and bf16.quality.is_less_close(fp32.quality):
        reason = f"less close to PyTorch than in fp32 ({fp32.quality})"
    evaluator.reporter.say(f"{target.provider}, bf16 between matrix products: {bf16.quality}; {reason or 'timed, too'}")
    return target if reason else rival


def _candidates(network: AnyNetwork, precision: Precision, target: Target) -> list[GraphPrecision]:
    kinds = [kind for kind in target.matmul_precisions[precision] if network.ranges or kind != "static int8"]
    if not kinds:
        raise ValueError(f"{target.flag} supports static int8 only; give --train or --texts to calibrate on")
    return [GraphPrecision(matmul=kind) for kind in kinds]


def _measure(
    decision: Decision, precisions: Sequence[GraphPrecision], evaluator: Evaluator, limits: QualityLimits
) -> list[Decision]:
    """Return a decision for each precision, all with the qualities measured so far."""
    qualities = {**decision.qualities, **evaluator.measure(decision.network, *precisions)}
    decisions = [replace(decision, precision=precision, qualities=qualities) for precision in precisions]
    for item in decisions:
        evaluator.reporter.say(f"{item.precision.name}: {item.quality}; {item.shortfall(limits) or 'within limits'}")
    return decisions


def _keep_in_fp32(decision: Decision, layers: Sequence[str], evaluator: Evaluator, limits: QualityLimits) -> Decision:
    """Double the number of most sensitive layers in fp32 until the limits are met, then bisect for fewer.

    Returns:
        The decision with the fewest fp32 layers that was found, or the last one tried if none meets the limits.
        Without layers to choose from, the decision itself.
    """
    if not layers:
        return decision

    def with_layers(before: Decision, count: int) -> Decision:
        precision = replace(before.precision, fp32_layers=tuple(layers[:count]))
        if precision.name in before.qualities:
            return replace(before, precision=precision)
        return _measure(before, [precision], evaluator, limits)[0]

    too_few = 0
    most = len(layers) - 1
    for count in [*takewhile(lambda count: count < most, (2**power for power in range(most))), most]:
        decision = with_layers(decision, count)
        if not decision.shortfall(limits):
            break
        too_few = count
    else:
        return decision
    for _ in range(_NUM_BISECTIONS):
        middle = (too_few + len(decision.precision.fp32_layers)) // 2
        if middle == too_few:
            break
        tried = with_layers(decision, middle)
        if tried.shortfall(limits):
            too_few, decision = middle, replace(decision, qualities=tried.qualities)
        else:
            decision = tried
    return decision


def _rejection(
    tried: Sequence[Decision], fewest: Decision, layers: Sequence[str], limits: QualityLimits, *, mixed: bool
) -> str:
    """Describe the closest graph, and what would pass: data, flags or precisions.

    Args:
        tried: decisions that miss the limits.
        fewest: decision with the fewest layers in fp32 within the limits, or with the most that were tried.
        mixed: True if `fewest` was allowed.
    """
    best = fewest if mixed else max(tried, key=_closeness)
    remedies = []
    if layers and not best.network.ranges:
        remedies.append("give --train or --texts to calibrate static and SmoothQuant int8 on")
    if not fewest.shortfall(limits):
        count = len(fewest.precision.fp32_layers)
        remedies.append(f"--mixed keeps such layers in fp32: {count} of {len(layers)} suffice")
    if limits.quality == "high" and (other := _accepted(tried, replace(limits, quality="default"))):
        remedies.append(f"--quality default accepts {other.precision.name}")
    if flags := best.accepting(limits):
        remedies.append(f"{flags} accepts {best.precision.name}")
    worst = "; ".join(f"{location} ({cosine:.3f})" for location, cosine in best.quality.worst[:_NUM_NAMED])
    return (
        f"graph rejected: with {best.precision.name} {best.shortfall(limits)}; largest differences: {worst}"
        f"{'; most sensitive layers: ' * bool(layers)}{', '.join(layers[:_NUM_NAMED])} "
        f"({'; or '.join([*remedies, 'export in fp32'])})"
    )
