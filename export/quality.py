"""How good the outputs of graphs are: scores as in evaluation, and how near they come to PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from export.evaluation_set import Evidence
from tasks.base import Outputs
from tasks.batching import RunModel, run_features
from tasks.embedding import Embedding
from tasks.metrics import main_score

_CHUNK = 32
"""Examples whose outputs are held at one time; those of masked-lm are large."""
_NUM_WORST = 5
_MAX_BYTES = 2**28
"""Of outputs that are remembered."""
Windows = list[list[Outputs]]
"""For each example, the outputs of its sequences."""


@dataclass(frozen=True, kw_only=True)
class Quality:
    """What is known of one network's outputs."""

    scores: Mapping[str, float]
    """By name, official metrics first; empty where there are no labels."""
    mean_cosine: float
    """Of what each sequence gets and what PyTorch gives it: vectors, or logits, for which see `_cosines`."""
    min_cosine: float
    worst: tuple[tuple[str, float], ...]
    """The sequences with the lowest cosines: where their examples stand, and the cosine."""

    def __str__(self) -> str:
        """For people."""
        found = f"mean cosine {self.mean_cosine:.4f}, lowest {self.min_cosine:.4f}"
        return f"{self.headline[0]} {100 * self.headline[1]:.2f}, {found}" if self.headline else found

    @property
    def headline(self) -> tuple[str, float] | None:
        """What the gate goes by."""
        return main_score(self.scores)


class Expected:
    """What PyTorch gives for evidence; remembered where it is small."""

    def __init__(self, evidence: Evidence, reference: RunModel) -> None:
        self.evidence = evidence
        self._reference = reference
        self._known: dict[int, Windows] = {}
        self._num_bytes = 0

    def outputs(self, numbers: range) -> Windows:
        """Of a chunk of examples."""
        if found := self._known.get(numbers.start):
            return found
        outputs = _outputs(self.evidence, numbers, self._reference)
        self._num_bytes += sum(array.nbytes for items in outputs for one in items for array in one.values())
        if self._num_bytes <= _MAX_BYTES:
            self._known[numbers.start] = outputs
        return outputs


def judge(
    expected: Expected,
    runs: Mapping[str, RunModel],
    *,
    max_batch_tokens: int = 256,
    progress: Callable[[int], object] = lambda count: None,
) -> dict[str, Quality]:
    """Run networks on the same examples.

    Args:
        max_batch_tokens: of the networks' batches, which dynamic ranges depend on.
        progress: called with the number of examples that all have done.

    Returns:
        The quality of each by name; PyTorch's comes first, as "PyTorch".
    """
    evidence = expected.evidence
    judges = {name: _Judge(evidence) for name in ("PyTorch", *runs)}
    for first in range(0, len(evidence.examples), _CHUNK):
        numbers = range(first, min(first + _CHUNK, len(evidence.examples)))
        wanted = expected.outputs(numbers)
        judges["PyTorch"].see(numbers, wanted, wanted)
        for name, run in runs.items():
            judges[name].see(numbers, _outputs(evidence, numbers, run, max_batch_tokens), wanted)
        progress(len(numbers))
    return {name: item.verdict() for name, item in judges.items()}


def _outputs(evidence: Evidence, numbers: range, run: RunModel, max_batch_tokens: int = 4096) -> Windows:
    """Of some examples."""
    windows = [evidence.windows[number] for number in numbers]
    features = [item for items in windows for item in items]
    flat = iter(run_features(evidence.task, features, run, max_batch_tokens=max_batch_tokens))
    return [[next(flat) for _ in items] for items in windows]


class _Judge:
    """Gathers what one network predicts."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.predictions: list[Any] = []
        self.places: list[str] = []
        self.pairs: list[tuple[float, float, float, int]] = []
        """Of each sequence the products found x found, found x wanted and wanted x wanted, and how many numbers."""

    def see(self, numbers: range, outputs: Sequence[Sequence[Outputs]], expected: Sequence[Sequence[Outputs]]) -> None:
        task, names = self.evidence.task, self.evidence.task.output_names
        centre = getattr(task.settings, "label_mean", 0.0)  # numbers far from 0 must not hide how they differ
        for number, found, wanted in zip(numbers, outputs, expected, strict=True):
            if self.evidence.score:
                example, windows = self.evidence.examples[number], self.evidence.windows[number]
                self.predictions.append(task.decode(example, windows, found))
            for one, other in zip(found, wanted, strict=True):
                first, second = _vector(one, names) - centre, _vector(other, names) - centre
                self.pairs.append((float(first @ first), float(first @ second), float(second @ second), first.size))
                self.places.append(self.evidence.places[number])

    def verdict(self) -> Quality:
        pairs = np.array(self.pairs)
        cosines = _cosines(pairs, of_vectors=isinstance(self.evidence.task, Embedding))
        lowest = np.argsort(cosines, kind="stable")[:_NUM_WORST]
        return Quality(
            scores=self.evidence.score(self.predictions) if self.evidence.score else {},
            mean_cosine=float(np.average(cosines, weights=pairs[:, 3])),
            min_cosine=float(cosines.min()),
            worst=tuple((self.places[number], float(cosines[number])) for number in lowest),
        )


def _vector(outputs: Outputs, names: Sequence[str]) -> np.ndarray:
    return np.concatenate([outputs[name].ravel() for name in names]).astype(np.float64)


def _cosines(pairs: np.ndarray, *, of_vectors: bool) -> np.ndarray:
    """[sequences], out of [sequences, 4] products of found and wanted with themselves and each other, and sizes.

    One or two logits make no vector whose direction says much; there, the mean squared difference is compared with
    twice the mean square of what is wanted of all sequences, which for vectors of one length is the cosine, too.
    """
    found, both, wanted, sizes = pairs.T
    if of_vectors:
        lengths = np.sqrt(found) * np.sqrt(wanted)
        return np.divide(both, lengths, out=(found == wanted).astype(float), where=lengths > 0)  # both zeros: the same
    usual = max(2 * float(wanted.sum() / sizes.sum()), 1e-24)
    return 1 - (found - 2 * both + wanted) / sizes / usual
