"""Small vectors: float16, int8 and binary instead of float32, for indexes that hold millions of them.

int8 divides each number of a vector of length 1 by the scale of its dimension: the largest number that calibration
texts have there, over 127. So `int8 * scale` is the number again. Binary keeps the sign of each number, packed into
bits as by `numpy.packbits` (the `ubinary` of sentence-transformers).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

import numpy as np

from tasks.schema import Bounds, check_bounds

VectorFormat = Literal["float32", "float16", "int8", "binary"]
FORMATS: tuple[VectorFormat, ...] = get_args(VectorFormat)
LIMIT = 127
"""Largest int8; -128 is not used, so that the range is the same on both sides."""
Positive = Annotated[float, Bounds(above=0)]


@dataclass(frozen=True, kw_only=True)
class SmallVectors:
    """Calibration of int8 vectors, and what small vectors lose: part of the manifest of an embedding model."""

    scales: tuple[Positive, ...]
    """Scale of each dimension."""
    lengths: tuple[Positive, ...]
    """Smallest length of the first numbers of a vector, for each count of them: with `dimensions`, numbers grow by up
    to its inverse when vectors are normalised."""
    losses: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Scores of each format on the evaluation set, by name."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if len(self.lengths) != len(self.scales):
            raise ValueError(f"need a length for each scale: `{len(self.lengths)}` for `{len(self.scales)}` scales")

    def scales_for(self, dimensions: int) -> np.ndarray:
        """Return the scales of unit vectors that are cut to some dimensions and normalised, [dimensions] float32."""
        return np.array(self.scales[:dimensions], np.float32) / np.float32(self.lengths[dimensions - 1])


def calibrate(vectors: np.ndarray) -> SmallVectors:
    """Return the calibration for vectors like these.

    Args:
        vectors: [texts, hidden] float, each of length 1.
    """
    values = vectors.astype(np.float64)
    largest = np.abs(values).max(axis=0)
    scales = np.maximum(largest, 1e-6 * largest.max()) / LIMIT  # a dimension may always be 0
    lengths = np.maximum(np.sqrt((values**2).cumsum(axis=1)).min(axis=0), 1e-3)
    lengths[-1] = 1.0
    return SmallVectors(scales=tuple(map(_short, scales)), lengths=tuple(map(_short, lengths)))


def _short(value: float) -> float:
    """Return a number with the digits of a float32."""
    return float(str(np.float32(value)))


def to_bytes(vector: np.ndarray, kind: VectorFormat, scales: np.ndarray | None = None) -> bytes:
    """Return a vector in a format, little-endian.

    Args:
        vector: [dim] float32.
        scales: [dim] float32 scales of int8.
    """
    if kind == "binary":
        return np.packbits(vector > 0).tobytes()
    if kind == "int8":
        assert scales is not None
        return np.clip(np.rint(vector / scales), -LIMIT, LIMIT).astype(np.int8).tobytes()
    return vector.astype("<f2" if kind == "float16" else "<f4").tobytes()


def restored(vectors: np.ndarray, kind: VectorFormat, scales: np.ndarray | None = None) -> np.ndarray:
    """Return vectors after they were stored in a format, [texts, dim] float32; signs as -1 and 1 for binary.

    Args:
        vectors: [texts, dim] float32.
        kind, scales: as for `to_bytes`.
    """
    rows = [to_bytes(row, kind, scales) for row in vectors]
    if kind == "binary":
        bits = np.unpackbits(np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1), axis=1)
        return 2.0 * bits[:, : vectors.shape[1]].astype(np.float32) - 1
    if kind == "int8":
        assert scales is not None
        return np.frombuffer(b"".join(rows), np.int8).reshape(vectors.shape).astype(np.float32) * scales
    return (
        np.frombuffer(b"".join(rows), "<f2" if kind == "float16" else "<f4").reshape(vectors.shape).astype(np.float32)
    )
