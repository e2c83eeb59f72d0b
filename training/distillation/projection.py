"""Projection of a teacher's vectors to the size of its student's."""

from __future__ import annotations

import numpy as np

SAMPLE = 50_000
"""Most vectors that principal axes are computed from."""


def principal_axes(vectors: np.ndarray, size: int) -> tuple[np.ndarray, float]:
    """Return the axes that keep most of some vectors' squared length, largest first.

    The vectors are not centred, as cosines are measured from the origin.

    Args:
        vectors: [vectors, teacher's size]; a regular sample is used.
        size: number of axes.

    Returns:
        The axes [teacher's size, size], which are orthonormal, and the fraction of the squared length that they keep.
    """
    sample = np.asarray(vectors[:: -(-len(vectors) // SAMPLE)], np.float64)
    values, axes = np.linalg.eigh(sample.T @ sample)
    order = np.argsort(-values)[:size]
    signs = np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])  # the same axes on every machine
    return (axes * signs)[:, order].astype(np.float32), float(values[order].sum() / values.sum())


def padding_axes(teacher_size: int, size: int) -> np.ndarray:
    """Return the matrix [teacher's size, size] that adds zeros to a vector."""
    return np.eye(teacher_size, size, dtype=np.float32)
