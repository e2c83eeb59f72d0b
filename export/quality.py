"""Quality of graphs on an evaluation set: scores as in evaluation, and similarity and agreement with PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from export.agreement import (
    SAME_NEAREST_10,
    describe,
    different_texts,
    most_likely,
    neighbour_agreement,
    prediction_agreement,
)
from export.evaluation_set import EvaluationSet
from export.graph import AnyNetwork, build_graph
from export.reporter import SILENT, Reporter
from export.session import graph_run, on_all_cores
from export.targets import TARGETS
from export.variant import GraphPrecision, MatMulPrecision, Target
from tasks.base import Outputs
from tasks.batching import RunModel, run_features
from tasks.embedding import Embedding
from tasks.metrics import main_score

REFERENCE = "PyTorch"
"""Name of the reference among measured qualities."""
MAX_LESS_AGREEMENT, MAX_LESS_COSINE = 0.01, 0.001
"""Differences in agreement and mean cosine, above which a graph is less close to PyTorch than another."""
_CHUNK = 32
"""Number of examples whose outputs are in memory at the same time; outputs of masked-lm are large."""
_NUM_WORST = 5
_BATCH_TOKENS, _REFERENCE_BATCH_TOKENS = 256, 4096
"""Largest batch of graphs, and of PyTorch, in padded tokens."""
_MAX_CACHE_BYTES = 2**28
_NUM_RANKING_EXAMPLES = 64
"""Number of examples for ranking layers by sensitivity."""
Windows = list[list[Outputs]]
"""Outputs of each example's sequences."""


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Measured quality of one network or graph."""

    scores: Mapping[str, float]
    """Scores by name, official metrics first; empty without labels."""
    mean_cosine: float
    """Mean cosine similarity to PyTorch's outputs over all sequences: of vectors, or of logits as in `_cosines`."""
    min_cosine: float
    worst: tuple[tuple[str, float], ...]
    """Sequences with the lowest cosines: location of the example, and cosine."""
    agreement: Mapping[str, float] = field(default_factory=dict)
    """Fractions of texts whose nearest neighbours, or of predictions that, are PyTorch's; empty for few examples."""

    def __str__(self) -> str:
        parts = [f"{self.headline[0]} {100 * self.headline[1]:.2f}"] if self.headline else []
        parts.append(f"mean cosine {self.mean_cosine:.4f}, lowest {self.min_cosine:.4f}")
        return ", ".join([*parts, describe(self.agreement)] if self.agreement else parts)

    @property
    def headline(self) -> tuple[str, float] | None:
        """Name and value of the score that the quality gate uses."""
        return main_score(self.scores)

    def is_less_close(self, other: Quality) -> bool:
        """Return whether this graph agrees with PyTorch clearly less than another one of the same precision.

        Neighbours and predictions are compared where there are enough examples, else the mean cosine.
        """
        if self.agreement:
            return any(found < other.agreement[name] - MAX_LESS_AGREEMENT for name, found in self.agreement.items())
        return not self.mean_cosine >= other.mean_cosine - MAX_LESS_COSINE

    @property
    def closeness(self) -> float:
        """Closeness to PyTorch, to compare graphs: the overlap of ten nearest for vectors, else the mean cosine."""
        return self.agreement.get(SAME_NEAREST_10, self.mean_cosine)


class _Comparison:
    """Collects the predictions of one network and their similarity to PyTorch's outputs."""

    def __init__(self, evaluation_set: EvaluationSet) -> None:
        self.evaluation_set = evaluation_set
        self.predictions: list[Any] = []
        self.decisions: list[Sequence[object]] = []
        """Decisions of each example; empty for numbers and vectors."""
        self.vectors: list[np.ndarray] = []
        """Vectors of different texts."""
        self.of_vectors = isinstance(evaluation_set.task, Embedding)
        self._different = set(different_texts(evaluation_set.windows)) if self.of_vectors else set()
        self.locations: list[str] = []
        self.products: list[tuple[float, float, float, int]] = []
        """Dot products of each sequence: actual x actual, actual x expected, expected x expected; and the size."""

    def add(self, indices: range, actual: Sequence[Sequence[Outputs]], expected: Sequence[Sequence[Outputs]]) -> None:
        task, names = self.evaluation_set.task, self.evaluation_set.task.output_names
        centre = getattr(task.settings, "label_mean", 0.0)  # a large mean of regression would hide differences
        for index, found, wanted in zip(indices, actual, expected, strict=True):
            if self.evaluation_set.score:
                example, windows = self.evaluation_set.examples[index], self.evaluation_set.windows[index]
                prediction = task.decode(example, windows, found)
                self.predictions.append(prediction)
                self.decisions.append(task.decisions(prediction))
            else:
                self.decisions.append([] if self.of_vectors else most_likely(task, found))
            if index in self._different:
                self.vectors.append(_vector(found[0], names))
            for one, other in zip(found, wanted, strict=True):
                first, second = _vector(one, names) - centre, _vector(other, names) - centre
                self.products.append((float(first @ first), float(first @ second), float(second @ second), first.size))
                self.locations.append(self.evaluation_set.locations[index])

    def result(self, reference: _Comparison) -> Quality:
        """Return the quality.

        Args:
            reference: PyTorch's comparison with itself.
        """
        products = np.array(self.products)
        cosines = _cosines(products, of_vectors=self.of_vectors)
        lowest = np.argsort(np.nan_to_num(cosines, nan=-np.inf), kind="stable")[:_NUM_WORST]
        if self.of_vectors:
            agreement = neighbour_agreement(np.array(self.vectors), np.array(reference.vectors))
        else:
            agreement = prediction_agreement(self.decisions, reference.decisions)
        return Quality(
            scores=self.evaluation_set.score(self.predictions) if self.evaluation_set.score else {},
            mean_cosine=float(np.average(cosines, weights=products[:, 3])),
            min_cosine=float(cosines.min()),
            worst=tuple((self.locations[index], float(cosines[index])) for index in lowest),
            agreement=agreement,
        )


def _vector(outputs: Outputs, names: Sequence[str]) -> np.ndarray:
    return np.concatenate([outputs[name].ravel() for name in names]).astype(np.float64)


def _cosines(products: np.ndarray, *, of_vectors: bool) -> np.ndarray:
    """Return the similarity of each sequence's outputs to PyTorch's, [sequences].

    The direction of one or two logits carries little information. For logits, the result is 1 - (mean squared
    difference) / (twice the mean square of PyTorch's outputs over all sequences); for vectors of equal
    length this is the cosine as well.

    Args:
        products: [sequences, 4], as `_Comparison.products`.
    """
    actual, both, expected, sizes = products.T
    if of_vectors:
        lengths = np.sqrt(actual) * np.sqrt(expected)
        both_zero = (actual == expected).astype(float)
        return np.divide(both, lengths, out=both_zero, where=lengths > 0)
    scale = max(2 * float(expected.sum() / sizes.sum()), 1e-24)
    return 1 - (actual - 2 * both + expected) / sizes / scale


class Evaluator:
    """Measures graphs of a network as a target runs them, and compares them with PyTorch."""

    def __init__(
        self,
        evaluation_set: EvaluationSet,
        run: RunModel,
        target: Target = TARGETS["cpu"],
        reporter: Reporter = SILENT,
    ) -> None:
        """Prepare an evaluation.

        Args:
            run: runs the network in PyTorch; its outputs are cached up to a size limit.
        """
        self.evaluation_set, self.run = evaluation_set, run
        self.target, self.reporter = target, reporter
        self._cache: dict[int, Windows] = {}
        self._num_bytes = 0

    def measure(self, network: AnyNetwork, *precisions: GraphPrecision) -> dict[str, Quality]:
        """Return the qualities of PyTorch and of graphs in some precisions, by name."""
        runs = {}
        for precision in precisions:
            graph = build_graph(network, precision, self.target.variant)
            runs[precision.name] = graph_run(graph, execution=on_all_cores(self.target.execution))
        return self.measure_runs("evaluating", runs, max_batch_tokens=_BATCH_TOKENS if self.target.pads else 1)

    def measure_runs(
        self, title: str, runs: Mapping[str, RunModel], *, max_batch_tokens: int = _BATCH_TOKENS
    ) -> dict[str, Quality]:
        """Run networks on the same examples and compare them with PyTorch.

        Args:
            runs: functions that run a network or graph, by name.
            max_batch_tokens: batch size cap of the networks, which dynamic int8 depends on.

        Returns:
            The quality of each by name; PyTorch's comes first, as `REFERENCE`.
        """
        count = len(self.evaluation_set.examples)
        comparisons = {name: _Comparison(self.evaluation_set) for name in (REFERENCE, *runs)}
        with self.reporter.bar(title, unit="example", total=count) as bar:
            for first in range(0, count, _CHUNK):
                indices = range(first, min(first + _CHUNK, count))
                expected = self._reference_outputs(indices)
                comparisons[REFERENCE].add(indices, expected, expected)
                for name, run in runs.items():
                    comparisons[name].add(indices, self._outputs(indices, run, max_batch_tokens), expected)
                bar.update(len(indices))
        return {name: comparison.result(comparisons[REFERENCE]) for name, comparison in comparisons.items()}

    def most_sensitive_layers(self, network: AnyNetwork, matmul: MatMulPrecision) -> list[str]:
        """Rank the layers by the loss of mean cosine when only that layer is int8, largest loss first."""
        if not (layers := network.quantizable_layers):
            return []
        sample = Evaluator(self.evaluation_set.sample(_NUM_RANKING_EXAMPLES), self.run, self.target)
        cosines: dict[str, float] = {}
        with self.reporter.bar("ranking layers", unit="layer", total=len(layers)) as bar:
            for layer in layers:
                others = tuple(name for name in layers if name != layer)
                _, quality = sample.measure(network, GraphPrecision(matmul=matmul, fp32_layers=others)).values()
                cosines[layer] = quality.mean_cosine
                bar.update(1)
        return sorted(layers, key=cosines.__getitem__)

    def _reference_outputs(self, indices: range) -> Windows:
        """Return PyTorch's outputs for a range of examples."""
        if cached := self._cache.get(indices.start):
            return cached
        outputs = self._outputs(indices, self.run, _REFERENCE_BATCH_TOKENS if self.target.pads else 1)
        self._num_bytes += sum(array.nbytes for items in outputs for one in items for array in one.values())
        if self._num_bytes <= _MAX_CACHE_BYTES:
            self._cache[indices.start] = outputs
        return outputs

    def _outputs(self, indices: range, run: RunModel, max_batch_tokens: int) -> Windows:
        """Return the outputs of a network for a range of examples: for each example, those of its sequences."""
        windows = [self.evaluation_set.windows[index] for index in indices]
        features = [item for items in windows for item in items]
        flat = iter(run_features(self.evaluation_set.task, features, run, max_batch_tokens=max_batch_tokens))
        return [[next(flat) for _ in items] for items in windows]
