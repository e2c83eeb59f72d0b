"""Calibration of int8 vectors on the evaluation set, and what vectors in other formats than float32 lose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from export.agreement import MIN_EXAMPLES, SAME_NEAREST, TITLES, different_texts, neighbour_agreement
from export.evaluation_set import EvaluationSet
from tasks.batching import RunModel, run_features
from tasks.small_vectors import FORMATS, SmallVectors, calibrate, restored

SPEARMAN = "spearman"
NEEDED = 2 * MIN_EXAMPLES
"""Minimum number of different texts."""


def measure_small_vectors(
    evaluation_set: EvaluationSet, run: RunModel, *, max_batch_tokens: int
) -> SmallVectors | None:
    """Calibrate on every second text; return what each format scores, and how far neighbours stay among the others.

    Args:
        evaluation_set: texts, or pairs of texts with similarities, of an embedding model.

    Returns:
        The calibration; None for random sequences, and fewer different texts than `NEEDED`.
    """
    if not has_texts(evaluation_set):
        return None
    texts = different_texts(evaluation_set.windows)
    if len(texts) < NEEDED:
        return None
    task = evaluation_set.task.with_settings(normalize=True)
    features = [window for windows in evaluation_set.windows for window in windows]
    outputs = run_features(task, features, run, max_batch_tokens=max_batch_tokens)
    vectors = np.array([task.decode("", (), [output]) for output in outputs])  # windows are not split here
    small, others = calibrate(vectors[texts[::2]]), texts[1::2]
    losses: dict[str, dict[str, float]] = {}
    for kind in FORMATS:
        stored = restored(vectors, kind, np.array(small.scales, np.float32))
        scores = evaluation_set.score(list(stored)) if evaluation_set.score else {}
        found = {SPEARMAN: scores[SPEARMAN]} if SPEARMAN in scores else {}
        losses[kind] = found | neighbour_agreement(stored[others], vectors[others])
    return replace(small, losses=losses)


def has_texts(evaluation_set: EvaluationSet) -> bool:
    """Return whether the examples are texts, and not random sequences."""
    return isinstance(evaluation_set.examples[0], str)


def describe(small: SmallVectors) -> str:
    """Return one line: `small vectors: float16 spearman 83.3, same nearest neighbour 100.0%; int8 ...`."""
    parts = []
    for kind, loss in small.losses.items():
        score = f"{SPEARMAN} {100 * loss[SPEARMAN]:.1f}, " if SPEARMAN in loss else ""
        parts.append(f"{kind} {score}{TITLES[SAME_NEAREST]} {100 * loss[SAME_NEAREST]:.1f}%")
    return f"small vectors: {'; '.join(parts)}"
