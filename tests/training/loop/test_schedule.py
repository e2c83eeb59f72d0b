"""Tests of the learning-rate schedule."""

import numpy as np

from training.loop.schedule import learning_rate


def test_learning_rate_rises_and_falls_linearly():
    """The learning rate rises linearly to its peak, then falls linearly to 0 after the last step."""
    rates = [learning_rate(step, peak=1.0, num_steps=10, warmup_steps=4) for step in range(11)]

    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    np.testing.assert_allclose(np.diff(rates[4:]), -1 / 6)
    assert rates[4] == 1.0
    assert rates[10] == 0.0
    assert learning_rate(0, peak=1.0, num_steps=10, warmup_steps=0) == 1.0
