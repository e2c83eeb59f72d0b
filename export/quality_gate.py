"""Quality gate: choose the fastest precision whose quality stays within limits.

int8 is tried as static, dynamic and SmoothQuant int8, in this order. Static comes first because its outputs do not
depend on the rest of the batch. If all fail and `mixed` is set, the most sensitive layers stay in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from export.network import Network
from export.quality import REFERENCE, Evaluator, Quality
from export.targets import Target, default_configuration
from export.variant import Configuration, GraphPrecision
from tasks.batching import RunModel
from tasks.embedding import Embedding
from tasks.manifest import Precision
from tasks.masked_lm import MaskedLM
from training.bounds import FRACTION, NOT_NEGATIVE, POSITIVE

_NUM_NAMED = 3
"""Number of examples and layers that an error names."""
_NUM_BISECTIONS = 2
"""Number of bisection steps for the number of fp32 layers; each costs one evaluation."""


class QualityError(ValueError):
    """Raised when the quality of a graph is below the limits."""


@dataclass(frozen=True, kw_only=True)
class QualityLimits:
    """Limits that a graph must keep."""

    atol: Annotated[float, POSITIVE] = 1e-4
    """Largest difference of an fp32 output from PyTorch's; proportional for values beyond 10."""
    max_drop: Annotated[float, NOT_NEGATIVE] = 0.5
    """int8 and fp16: largest drop of the task's first score (a loss does not count), in points."""
    min_cosine: Annotated[float, FRACTION] = 0.99
    """int8 and fp16: lowest mean cosine to PyTorch's outputs, for embeddings, masked LM, and without labels."""

    def shortfall(self, quality: Quality, reference: Quality, *, by_cosine: bool) -> str:
        """Return how a quality misses the limits; empty if it meets them.

        Args:
            quality: quality of the graph.
            reference: quality of PyTorch.
            by_cosine: True to check the cosine in addition to scores.
        """
        if reference.headline:
            name, before = reference.headline
            drop = round(100 * (before - quality.scores[name]), 6)  # avoids 0.3775 - 0.3725 > 0.005
            if not drop <= self.max_drop:
                return f"{name} drops by {drop:.2f} points (--max-drop {self.max_drop})"
        if (by_cosine or not reference.headline) and not quality.mean_cosine >= self.min_cosine:
            return f"the mean cosine to PyTorch is {quality.mean_cosine:.4f} (--min-cosine {self.min_cosine})"
        return ""


@dataclass(frozen=True)
class Decision:
    """A precision, the network to write in it, and the qualities measured on the way."""

    network: Network
    precision: GraphPrecision = field(default_factory=GraphPrecision)
    qualities: Mapping[str, Quality] = field(default_factory=dict)
    """Qualities by name; PyTorch comes first."""

    @property
    def quality(self) -> Quality:
        """Quality of the chosen precision."""
        return self.qualities[self.precision.name]

    def shortfall(self, limits: QualityLimits) -> str:
        """Return how the precision misses the limits; empty if it meets them."""
        # Scores alone do not suffice, since applications use vectors and token probabilities directly.
        by_cosine = isinstance(self.network.task, Embedding | MaskedLM)
        return limits.shortfall(self.quality, self.qualities[REFERENCE], by_cosine=by_cosine)


def choose(
    network: Network,
    precision: Precision,
    *,
    evaluator: Evaluator,
    limits: QualityLimits,
    smoothquant: Callable[[], Network] | None = None,
    mixed: bool = False,
) -> Decision:
    """Choose the first precision within the limits: fp16, or static, dynamic, SmoothQuant and then mixed int8.

    Args:
        network: network to export. Static int8 needs its ranges.
        precision: `int8` or `fp16`.
        evaluator: measures the candidates.
        limits: limits that the chosen one must meet.
        smoothquant: returns the network with smoothing factors; None to skip SmoothQuant.
        mixed: for int8, keep as many layers in fp32 as the limits require.

    Raises:
        QualityError: with the loss, the examples that differ most, and the most sensitive layers.
    """
    candidates = _candidates(network, precision, evaluator.target)
    decisions = _measure(Decision(network), [GraphPrecision(), *candidates], evaluator, limits)[1:]
    for decision in decisions:
        if not decision.shortfall(limits):
            return decision
    if precision == "fp16":
        reason = decisions[0].shortfall(limits)
        raise QualityError(f"graph rejected: with fp16 {reason} (raise the limit, or use fp32)")
    best = max(decisions, key=lambda decision: decision.quality.mean_cosine)
    if smoothquant:
        smoothed = replace(best, network=smoothquant())
        (best,) = _measure(smoothed, [GraphPrecision(matmul="SmoothQuant int8")], evaluator, limits)
        if not best.shortfall(limits):
            return best
    layers = evaluator.most_sensitive_layers(best.network, best.precision.matmul)
    if mixed:
        best = _keep_in_fp32(best, layers, evaluator, limits)
        if not best.shortfall(limits):
            return best
    raise QualityError(_rejection(best, layers, limits, mixed=mixed))


def check_final_graph(
    decision: Decision, run: RunModel, configuration: Configuration, *, evaluator: Evaluator, limits: QualityLimits
) -> Decision:
    """Measure the written graph in its final configuration and return the decision with that quality.

    Raises:
        QualityError: if it misses the limits, although another graph variant met them.
    """
    max_batch_tokens = configuration.execution.max_batch_tokens
    qualities = evaluator.measure_run(decision.precision.name, run, max_batch_tokens=max_batch_tokens)
    decision = replace(decision, qualities={**decision.qualities, **qualities})
    if reason := decision.shortfall(limits):
        remedies = ", or ".join(_remedies(decision.precision, configuration, evaluator.target))
        raise QualityError(f"graph rejected: {decision.precision.name}, as served: {reason} ({remedies})")
    return decision


def _candidates(network: Network, precision: Precision, target: Target) -> list[GraphPrecision]:
    kinds = [kind for kind in target.matmul_precisions[precision] if network.ranges or kind != "static int8"]
    if not kinds:
        raise ValueError(f"--target {target.name} supports static int8 only; give --train or --texts to calibrate on")
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
    """

    def with_layers(before: Decision, count: int) -> Decision:
        precision = replace(before.precision, fp32_layers=tuple(layers[:count]))
        return _measure(before, [precision], evaluator, limits)[0]

    too_few = 0
    for count in _powers_of_two(len(layers) - 1):
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


def _powers_of_two(largest: int) -> Iterator[int]:
    """Yield 1, 2, 4, ... and finally `largest`."""
    count = 1
    while count < largest:
        yield count
        count *= 2
    yield largest


def _remedies(precision: GraphPrecision, configuration: Configuration, target: Target) -> Iterator[str]:
    """Yield remedies that were not tried yet."""
    yield "raise the limit"
    if configuration != default_configuration(target):
        yield "use the default variant with --no-tune"
    if precision != GraphPrecision():
        yield "use fp32"


def _rejection(decision: Decision, layers: Sequence[str], limits: QualityLimits, *, mixed: bool) -> str:
    worst = "; ".join(f"{location} ({cosine:.3f})" for location, cosine in decision.quality.worst[:_NUM_NAMED])
    remedy = "raise the limit, or export in fp32" if mixed else "--mixed keeps such layers in fp32"
    if not decision.network.ranges:
        remedy = f"give --train or --texts to calibrate static and SmoothQuant int8 on; or {remedy}"
    return (
        f"graph rejected: with {decision.precision.name} {decision.shortfall(limits)}; largest differences: {worst}; "
        f"most sensitive layers: {', '.join(layers[:_NUM_NAMED])} ({remedy})"
    )
