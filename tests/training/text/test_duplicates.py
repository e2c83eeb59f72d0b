"""Tests of counting repeated segments."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.text.duplicates import DuplicateCounter, hash_segments

segment_lists = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=30)


def duplicate_fraction(segments, limit=100):
    counter = DuplicateCounter(limit)
    for part in (segments[::2], segments[1::2]):
        ids = np.array([item for segment in part for item in segment], dtype=np.uint16)
        ends = np.cumsum([0, *map(len, part)])
        counter.add(hash_segments(ids, ends), np.diff(ends))
    return counter.fraction()


@given(segment_lists)
def test_fraction_is_that_of_a_set(segments):
    """The fraction equals the one counted with Python's sets, in any order of segments."""
    total, different = sum(map(len, segments)), sum(map(len, {tuple(segment) for segment in segments}))

    assert duplicate_fraction(segments) == pytest.approx(1 - different / total if total else 0)
    assert duplicate_fraction(segments[::-1]) == duplicate_fraction(segments)


def test_fraction_of_a_sample_is_close():
    """A sample of 1,000 of 60,000 different segments estimates the duplicate fraction to 5 percentage points."""
    lengths = np.random.default_rng(0).integers(10, 50, 60_000)
    hashes = hash_segments(np.arange(60_000), np.arange(60_001))
    fractions = []
    for order in (np.arange(60_000), np.arange(60_000)[::-1]):
        counter = DuplicateCounter(1000)
        for part in np.split(order, 6):
            repeated = np.repeat(hashes[:1], 5000)
            counter.add(np.append(hashes[part], repeated), np.append(lengths[part], np.full(5000, 30)))
        fractions.append(counter.fraction())

    assert fractions[0] == pytest.approx(1 / 3, abs=0.05)
    assert fractions[0] == fractions[1]
