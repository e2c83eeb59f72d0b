"""Overlapping windows over texts longer than max_seq_length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


def window_bounds(num_tokens: int, capacity: int, doc_stride: int) -> Iterator[tuple[int, int]]:
    """Yield windows (start, end) of at most `capacity` tokens that cover `num_tokens` tokens."""
    start = 0
    while True:
        end = min(start + capacity, num_tokens)
        yield start, end
        if end == num_tokens:
            return
        start += min(doc_stride, end - start)


def max_context_owner(spans: Sequence[tuple[int, int]], num_tokens: int) -> np.ndarray:
    """Return, for each token of a text, the number of the window in which it has the most context: [tokens] int64.

    Args:
        spans: the windows, (start, end) in tokens.

    Source: `_check_is_max_context` of google-research/bert run_squad.py.
    """
    best_score = np.full(num_tokens, -np.inf)
    owner = np.zeros(num_tokens, dtype=np.int64)
    for number, (start, end) in enumerate(spans):
        left = np.arange(end - start)
        score = np.minimum(left, left[::-1]) + 0.01 * (end - start)
        better = score > best_score[start:end]
        best_score[start:end][better] = score[better]
        owner[start:end][better] = number
    return owner
