"""The quality gate: integers are taken where what they cost stays within limits.

Static ones come before dynamic ones, as a text's numbers then do not depend on what else is in its batch. Where both
cost too much, activations are balanced, which takes a little time; where that is not enough either, the parts to blame
are found by making each alone an integer one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from export.choice import Choice, default_choice
from export.evaluation_set import Evidence
from export.graph import build_graph
from export.network import Network
from export.quality import Expected, Quality, judge
from export.reporter import SILENT, Stages
from export.session import on_all_cores, ort_run
from export.targets import TARGETS, Target
from export.variant import Numbers, Products
from tasks.batching import RunModel
from tasks.embedding import Embedding
from tasks.manifest import Precision
from tasks.masked_lm import MaskedLM
from training.bounds import FRACTION, NOT_NEGATIVE, POSITIVE

_NUM_SCANNED = 64
"""Examples on which parts are compared."""
_NUM_NAMED = 3
"""Examples and parts that a refusal names."""
_NUM_BISECTIONS = 2
"""Of the number of parts in floats; each judges once more."""


class QualityError(ValueError):
    """A graph's outputs are worse than is allowed."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a graph must keep to."""

    atol: Annotated[float, POSITIVE] = 1e-4
    """Largest difference of an fp32 output from PyTorch; of values beyond 10, in proportion."""
    max_drop: Annotated[float, NOT_NEGATIVE] = 0.5
    """int8 and fp16: points that the first of the task's scores may lose; a loss is none."""
    min_cosine: Annotated[float, FRACTION] = 0.99
    """int8 and fp16, of embeddings and masked LM and where there are no labels: lowest mean cosine to PyTorch."""

    def shortfall(self, quality: Quality, reference: Quality, *, by_cosine: bool) -> str:
        """How quality is below the limits, in words; empty where it is not.

        Args:
            by_cosine: whether outputs are looked at beside scores, too.
        """
        if reference.headline:
            name, before = reference.headline
            drop = round(100 * (before - quality.scores[name]), 6)  # 0.3775 - 0.3725 is more than half a point
            if not drop <= self.max_drop:
                return f"{name} falls by {drop:.2f} points (--max-drop {self.max_drop})"
        if (by_cosine or not reference.headline) and not quality.mean_cosine >= self.min_cosine:
            return f"the mean cosine to PyTorch is {quality.mean_cosine:.4f} (--min-cosine {self.min_cosine})"
        return ""


@dataclass
class Gate:
    """Chooses numbers, and remembers how good all that were tried are."""

    network: Network
    evidence: Evidence
    reference: RunModel
    """PyTorch's."""
    limits: Limits
    stages: Stages = SILENT
    target: Target = TARGETS["cpu"]
    """Numbers are judged as it runs them."""
    balance: Callable[[], Network] | None = None
    """Makes the network for "balanced int8", for which activations have to be measured once more."""
    qualities: dict[str, Quality] = field(default_factory=dict)
    """By names that people read; "PyTorch" is the first."""

    def __post_init__(self) -> None:
        self.expected = Expected(self.evidence, self.reference)

    def choose(self, precision: Precision = "int8", *, mixed: bool) -> Numbers:
        """The first to be good enough of fp16; or of the integers that the target has (static, dynamic), balanced ones,
        and then with ever more parts in floats.

        For "balanced int8" the gate has another network than before.

        Args:
            mixed: whether parts may stay in floats; int8 only.

        Raises:
            QualityError: saying how much is lost, on which examples most, and by which parts.
        """
        kinds = [kind for kind in self.target.products[precision] if self.network.ranges or kind != "static int8"]
        if not kinds:
            raise ValueError(
                f"--target {self.target.name} takes static int8 only; give --train or --texts for its ranges"
            )
        candidates = [Numbers(products=kind) for kind in kinds]
        self.judge(Numbers(), *candidates)
        if good := next((numbers for numbers in candidates if not self.shortfall(numbers)), None):
            return good
        if precision == "fp16":
            raise QualityError(
                f"graph refused: with fp16 {self.shortfall(candidates[0])} (raise the limit, or take fp32)"
            )
        best = max(candidates, key=lambda numbers: self.qualities[numbers.name].mean_cosine)
        if self.balance:
            self.network, best = self.balance(), Numbers(products="balanced int8")
            if self.is_good(best):
                return best
        parts, tried = self.dearest_parts(best.products), 0
        for count in _doubling(len(parts) - 1) if mixed else ():
            if self.is_good(best := _in_floats(best, parts[:count])):
                return self.fewer(best, parts, tried)
            tried = count
        raise QualityError(self.refusal(best, parts, mixed=mixed))

    def is_good(self, numbers: Numbers) -> bool:
        """Judge them."""
        self.judge(numbers)
        return not self.shortfall(numbers)

    def fewer(self, good: Numbers, parts: Sequence[str], too_few: int) -> Numbers:
        """Bisect between the parts in floats of what is good enough, and a number of them that is not."""
        for _ in range(_NUM_BISECTIONS):
            middle = (too_few + len(good.fp32_layers)) // 2
            if middle == too_few:
                break
            if self.is_good(found := _in_floats(good, parts[:middle])):
                good = found
            else:
                too_few = middle
        return good

    def judge(self, *candidates: Numbers) -> None:
        """Find out how good graphs with some numbers are."""
        runs = {numbers.name: self.run(numbers) for numbers in candidates}
        with self.stages.bar("judging", unit="example", total=len(self.evidence.examples)) as bar:
            self.qualities |= judge(self.expected, runs, progress=bar.update)
        for numbers in candidates:
            self.stages.say(
                f"{numbers.name}: {self.qualities[numbers.name]}; {self.shortfall(numbers) or 'good enough'}"
            )

    def run(self, numbers: Numbers) -> RunModel:
        """A graph with these numbers, in whatever form, on all cores."""
        graph = build_graph(self.network, numbers, self.target.form)
        return ort_run(graph, execution=on_all_cores(self.target.execution))

    def check(self, numbers: Numbers, choice: Choice, run: RunModel) -> None:
        """Judge the graph that was written in the end, as it will be run.

        Raises:
            QualityError: when it falls short, though another form of it did not.
        """
        with self.stages.bar("last check", unit="example", total=len(self.evidence.examples)) as bar:
            runs = {numbers.name: run}
            max_batch_tokens = choice.execution.max_batch_tokens
            self.qualities |= judge(self.expected, runs, max_batch_tokens=max_batch_tokens, progress=bar.update)
        if reason := self.shortfall(numbers):
            remedies = ", or ".join(self.remedies(numbers, choice))
            raise QualityError(f"graph refused: {numbers.name}, as it will be run: {reason} ({remedies})")

    def remedies(self, numbers: Numbers, choice: Choice) -> Iterator[str]:
        """What else may be good enough, without what was already tried."""
        yield "raise the limit"
        if choice != default_choice(self.target):
            yield "take the default form with --no-tune"
        if numbers != Numbers():
            yield "take fp32"

    def shortfall(self, numbers: Numbers) -> str:
        """How numbers are below the limits, in words; empty where they are not."""
        quality, reference = self.qualities[numbers.name], self.qualities["PyTorch"]
        used_as_they_are = isinstance(self.evidence.task, Embedding | MaskedLM)
        return self.limits.shortfall(quality, reference, by_cosine=used_as_they_are)

    def dearest_parts(self, products: Products) -> list[str]:
        """All that can be of integers by what it loses when it alone is, the greatest loss first."""
        parts = self.network.int8_parts
        some = Expected(self.evidence.some(_NUM_SCANNED), self.reference)
        loss: dict[str, float] = {}
        with self.stages.bar("blame", unit="part", total=len(parts)) as bar:
            for part in parts:
                numbers = Numbers(products=products, fp32_layers=tuple(name for name in parts if name != part))
                found = judge(some, {part: self.run(numbers)})
                loss[part] = 1 - found[part].mean_cosine
                bar.update(1)
        return sorted(parts, key=lambda part: -loss[part])

    def refusal(self, numbers: Numbers, parts: Sequence[str], *, mixed: bool) -> str:
        """One line."""
        worst = "; ".join(f"{place} ({value:.3f})" for place, value in self.qualities[numbers.name].worst[:_NUM_NAMED])
        remedy = "loosen the limit, or export in fp32" if mixed else "--mixed leaves such parts in floats"
        if not self.network.ranges:
            remedy = f"give --train or --texts, from which static and balanced int8 take ranges; or {remedy}"
        return (
            f"graph refused: with {numbers.name} {self.shortfall(numbers)}; most differ: {worst}; "
            f"most to blame: {', '.join(parts[:_NUM_NAMED])} ({remedy})"
        )


def _in_floats(numbers: Numbers, parts: Sequence[str]) -> Numbers:
    return replace(numbers, fp32_layers=tuple(parts))


def _doubling(most: int) -> Iterator[int]:
    """1, 2, 4 ... and the most."""
    count = 1
    while count < most:
        yield count
        count *= 2
    yield most
