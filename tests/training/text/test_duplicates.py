"""Repeated segments are found wherever they stand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.text.duplicates import DuplicateCounter, hash_segments

segment_lists = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=30)


def share_of(segments, limit=100):
    counter = DuplicateCounter(limit)
    for part in (segments[::2], segments[1::2]):
        ids = np.array([item for segment in part for item in segment], dtype=np.uint16)
        ends = np.cumsum([0, *map(len, part)])
        counter.add(hash_segments(ids, ends), np.diff(ends))
    return counter.fraction()


@given(segment_lists)
def test_share_is_that_of_a_set(segments):
    """Tokens of all but one copy of each segment, as counted with Python's own sets."""
    total, different = sum(map(len, segments)), sum(map(len, {tuple(segment) for segment in segments}))

    assert share_of(segments) == pytest.approx(1 - different / total if total else 0)
    assert share_of(segments[::-1]) == share_of(segments)


def test_share_of_a_sample_is_close():
    """With room for 1,000 of 60,000 different segments, one of which is a third of all, by 1 / √1000 of the rest."""
    lengths = np.random.default_rng(0).integers(10, 50, 60_000)
    hashes = hash_segments(np.arange(60_000), np.arange(60_001))
    counter, reversed_counter = DuplicateCounter(1000), DuplicateCounter(1000)
    for part in np.split(np.arange(60_000), 6):
        counter.add(np.append(hashes[part], np.repeat(hashes[:1], 5000)), np.append(lengths[part], np.full(5000, 30)))
    for part in np.split(np.arange(60_000)[::-1], 6):
        reversed_counter.add(
            np.append(hashes[part], np.repeat(hashes[:1], 5000)), np.append(lengths[part], [30] * 5000)
        )

    assert counter.fraction() == pytest.approx(1 / 3, abs=0.05)
    assert counter.fraction() == reversed_counter.fraction()
