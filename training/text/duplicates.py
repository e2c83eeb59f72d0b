"""Fraction of a corpus that occurs more than once; `training.corpus` prints it.

A model memorizes repeated text, and held-out text that also occurs in training is no test: the loss looks better than
the model is (google-research/bert issue 746). Sequences of ids are compared by 64-bit hashes: among n different ones,
the probability of a false match is n² / 2⁶⁵ (one in thirty million for a million).
"""

from __future__ import annotations

import numpy as np

SAMPLE_LIMIT = 2**20
"""Number of segments in the sample; they take 16 MB."""


def hash_segments(ids: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Hash each segment of an array of ids.

    Args:
        ids: [tokens] ids.
        ends: [segments + 1] offsets from 0; segments are not empty.

    Returns:
        [segments] uint64.
    """
    if len(ends) == 1:
        return np.zeros(0, np.uint64)
    lengths = np.diff(ends)
    positions = np.arange(len(ids)) - np.repeat(ends[:-1], lengths)
    of_position = _mix(np.arange(lengths.max(), dtype=np.uint64)) | np.uint64(1)
    of_id = _mix(np.arange(int(ids.max()) + 1, dtype=np.uint64) + np.uint64(2**32))
    return _mix(np.add.reduceat(of_id[ids] * of_position[positions], ends[:-1]))


class DuplicateCounter:
    """Fraction of tokens in segments seen before, estimated in bounded memory.

    It remembers the hash of each different segment, up to `limit`. Beyond, it remembers only hashes that end in zeros,
    as a sample of all. The result is exact up to `limit` different segments; beyond, its standard error is about
    1 / √limit (0.1 percentage points). It does not depend on the order of segments.
    """

    def __init__(self, limit: int = SAMPLE_LIMIT) -> None:
        self._limit = limit
        self._mask = np.uint64(0)
        self._sample = np.zeros((2, 0), np.uint64)
        self._num_tokens = 0

    def add(self, hashes: np.ndarray, lengths: np.ndarray) -> None:
        """Count segments.

        Args:
            hashes: [segments] uint64.
            lengths: [segments] tokens of each.
        """
        self._num_tokens += int(lengths.sum())
        sample = np.concatenate([self._sample, np.stack([hashes, lengths.astype(np.uint64)])], axis=1)
        self._sample = self._sampled(sample[:, np.unique(sample[0], return_index=True)[1]])
        while self._sample.shape[1] > self._limit:
            self._mask = self._mask << np.uint64(1) | np.uint64(1)
            self._sample = self._sampled(self._sample)

    def fraction(self) -> float:
        """Return the fraction of tokens in repeated segments, from 0 to 1."""
        num_different = int(self._sample[1].sum()) * (int(self._mask) + 1)
        return max(0.0, 1 - num_different / self._num_tokens) if self._num_tokens else 0.0

    def _sampled(self, sample: np.ndarray) -> np.ndarray:
        return sample[:, sample[0] & self._mask == 0]


def _mix(values: np.ndarray) -> np.ndarray:
    """Apply the finalizer of SplitMix64 (Steele et al. 2014): each result bit depends on all input bits."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
