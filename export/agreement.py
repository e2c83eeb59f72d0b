"""Agreement of a graph with the checkpoint in what users see: nearest neighbours of vectors, and predictions.

A mean cosine shows little where vectors are crowded: 0.99 can change every tenth nearest neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tasks.base import AnyTask, Outputs, Task
from tasks.embedding import Embedding
from tasks.features import Features
from tasks.sparse_embedding import SparseEmbedding
from tasks.token_embedding import TokenEmbedding

SAME_NEAREST, SAME_NEAREST_10, SAME_PREDICTION = "same_nearest", "same_nearest_10", "same_prediction"
TITLES: Mapping[str, str] = {
    SAME_NEAREST: "same nearest neighbour",
    SAME_NEAREST_10: "overlap of ten nearest",
    SAME_PREDICTION: "same prediction",
}
"""Names of agreements for people."""
MIN_EXAMPLES = 100
"""Minimum number of different examples. Among few texts, neighbours are far apart and hardly ever change."""
MAX_TEXTS = 2000
"""Maximum number of texts whose neighbours are compared; memory grows with its square."""
_NUM_NEIGHBOURS = 10
_TIE = 1e-6
"""Cosines of PyTorch's vectors that differ by less count as equal."""


def compares(task: AnyTask, *, scored: bool) -> bool:
    """Return whether the task's outputs have neighbours or decisions to compare.

    Args:
        scored: True for labelled examples, whose outputs are decoded.
    """
    if isinstance(task, Embedding | SparseEmbedding | TokenEmbedding):
        return isinstance(task, Embedding)
    if scored:
        return type(task).decisions is not Task.decisions
    return math.prod(task.output_shape(hidden_size=1, vocab_size=2)) > 1  # several labels, or tokens


def different_texts(windows: Sequence[Sequence[Features]]) -> list[int]:
    """Return the indices of the first `MAX_TEXTS` examples whose tokens differ from all before."""
    first: dict[tuple[bytes, ...], int] = {}
    for index, items in enumerate(windows):
        first.setdefault(tuple(np.asarray(item.input_ids, np.int64).tobytes() for item in items), index)
    return list(first.values())[:MAX_TEXTS]


def neighbour_agreement(actual: np.ndarray, expected: np.ndarray) -> dict[str, float]:
    """Return the agreement of nearest neighbours by cosine; empty below `MIN_EXAMPLES` texts.

    A neighbour counts as the same if PyTorch's vectors have it at the same place, or at an equal cosine.

    Args:
        actual: vectors of different texts, [texts, hidden].
        expected: PyTorch's vectors of the same texts.
    """
    if len(actual) < MIN_EXAMPLES:
        return {}
    found, wanted = _cosines(actual), _cosines(expected)
    nearest = np.take_along_axis(wanted, found.argmax(1)[:, None], axis=1)[:, 0]
    ten = np.argpartition(found, -_NUM_NEIGHBOURS, axis=1)[:, -_NUM_NEIGHBOURS:]
    tenth = np.partition(wanted, -_NUM_NEIGHBOURS, axis=1)[:, -_NUM_NEIGHBOURS]
    return {
        SAME_NEAREST: float(np.mean(nearest >= wanted.max(1) - _TIE)),
        SAME_NEAREST_10: float(np.mean(np.take_along_axis(wanted, ten, axis=1) >= tenth[:, None] - _TIE)),
    }


def _cosines(vectors: np.ndarray) -> np.ndarray:
    """Return the cosines of all pairs of vectors, [texts, texts], -inf for a text with itself."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    return cosines


def most_likely(task: AnyTask, outputs: Sequence[Outputs]) -> list[object]:
    """Return the most likely label of each sequence, or of each of its tokens, without decoding; empty for numbers.

    For multi-label models: for each label whether it is selected.
    """
    if not compares(task, scored=False):
        return []
    if getattr(task.settings, "is_multi_label", False):
        return [decision for one in outputs for decision in task.decisions(task.decode(None, (), [one]))]
    return [int(label) for one in outputs for name in task.output_names for label in one[name].argmax(-1).ravel()]


def prediction_agreement(actual: Sequence[Sequence[object]], expected: Sequence[Sequence[object]]) -> dict[str, float]:
    """Return the fraction of decisions that are the same; empty without decisions or below `MIN_EXAMPLES` examples.

    Args:
        actual: decisions of each example, such as its label, or the tag of each word.
        expected: decisions of PyTorch.
    """
    if len(actual) < MIN_EXAMPLES or not any(expected):
        return {}
    pairs = [pair for found, wanted in zip(actual, expected, strict=True) for pair in zip(found, wanted, strict=True)]
    return {SAME_PREDICTION: float(np.mean([found == wanted for found, wanted in pairs]))}


def describe(agreement: Mapping[str, float]) -> str:
    """List agreements in percent, for example `same nearest neighbour 93.3%, overlap of ten nearest 94.7%`."""
    return ", ".join(f"{title} {100 * agreement[name]:.1f}%" for name, title in TITLES.items() if name in agreement)
