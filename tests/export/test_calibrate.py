"""Calibration: ranges of activations that minimise the squared error."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from export.calibrate import FRACTIONS, NUM_BINS, Histogram, calibrate
from export.evaluation_set import random_ids
from export.network import Range
from tests.export.conftest import read_network

FLOATS = st.floats(-1e4, 1e4, width=32)


def squared_error(x, item):
    integers = np.clip(np.round(x / item.scale) + item.zero_point, 0, 255)
    return float((((integers - item.zero_point) * item.scale - x) ** 2).sum())


def histogram_of(parts):
    histogram = Histogram()
    for part in parts:
        histogram.add(torch.tensor(part, dtype=torch.float32))
    return histogram


@given(st.lists(st.lists(FLOATS, min_size=1, max_size=20), min_size=1, max_size=6))
def test_histogram_counts_all_values(parts):
    """Wider bins keep their counts, and the ends are exact."""
    parts = [[1.0], *parts]
    histogram = histogram_of(parts)

    values = np.concatenate(parts).astype(np.float32)
    assert histogram.counts.sum() == len(values)
    assert (histogram.low, histogram.high) == (min(0, values.min()), max(0, values.max()))
    centres = histogram.limit * ((2 * np.arange(NUM_BINS) + 1) / NUM_BINS - 1)
    found = np.repeat(centres, histogram.counts.int().numpy())
    np.testing.assert_allclose(found, np.sort(values), atol=1.01 * histogram.limit / NUM_BINS)


def test_best_range_cuts_off_outliers():
    """The chosen range has the smallest error on the values."""
    values = np.random.default_rng(0).normal(size=20_000).astype(np.float32)
    values[:3] = (9, -8, 7.5)

    found = histogram_of(np.split(values, 10)).best_range()

    low, high = values.min(), values.max()
    tried = [Range.between(fraction * low, fraction * high) for fraction in FRACTIONS]
    assert squared_error(values, found) <= 1.001 * min(squared_error(values, item) for item in tried)
    assert found.scale < Range.between(low, high).scale


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_ranges_cover_what_the_graph_computes(pooling, checkpoints):
    """If only [CLS] is read, the last layer uses the other tokens for keys and values only."""
    model, network = read_network(checkpoints["plain"], pooling=pooling)
    features = random_ids(network.task).features
    kinds = ("qkv", "attention_output", "intermediate", "output")
    seen = {f"bert.layers.{number}.{kind}": Histogram() for number in (0, 1) for kind in kinds}

    def watch(name):
        is_of_cls = pooling == "cls" and name.startswith("bert.layers.1.") and not name.endswith("qkv")
        model.get_submodule(name).register_forward_pre_hook(
            lambda module, inputs: seen[name].add(inputs[0][:, :1] if is_of_cls else inputs[0])
        )

    for name in seen:
        watch(name)
    found = calibrate(model, network.task, features, list(seen))

    assert found == {name: histogram.best_range() for name, histogram in seen.items()}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_overflow_is_refused(value):
    """The error contains the range of the values."""
    with pytest.raises(ValueError, match=r"activations overflow int8 quantisation: .* to .*; train the model again"):
        histogram_of([[1.0], [value, 0.0]])


def test_zeros_have_a_range():
    """Activations that are always zero get a valid range."""
    assert histogram_of([[0.0, 0.0]]).best_range() == Range(1.0, 0)
