"""Tests of baselines: each makes the best of the input that it may use."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.pretraining import Masking
from training.objectives.baselines import masked_unigram

MASK = 12


@given(
    st.lists(st.integers(0, 50), min_size=MASK, max_size=MASK),
    st.lists(st.integers(0, 50), min_size=MASK, max_size=MASK).filter(any),
    st.sampled_from([(0.8, 0.1), (1.0, 0.0), (0.8, 0.0), (0.8, 0.2), (0.0, 0.8), (0.0, 1.0), (0.5, 0.3)]),
)
def test_unigram_baseline_is_bayes_rule(train, dev, fractions):
    """The unigram baseline equals Bayes' rule, computed over all pairs of true and visible token."""
    train, dev = np.array(train), np.array(dev)
    masking = Masking(mask_fraction=fractions[0], random_fraction=fractions[1])

    def joint(frequencies):
        size = len(frequencies)
        seen = np.zeros((size, size + 1))  # axes: true token, visible token; [MASK] is last
        seen[:, :size] = (1 - sum(fractions)) * np.diag(frequencies) + fractions[1] * frequencies[:, None] / size
        seen[:, MASK] = fractions[0] * frequencies
        return seen

    believed, true = joint((train + 1) / (train + 1).sum()), joint(dev / dev.sum())
    possible = believed.sum(0) > 1e-12
    posterior = believed[:, possible] / believed[:, possible].sum(0)
    true = true[:, possible]
    happens = true > 1e-12
    loss = -(true[happens] * np.log(posterior[happens])).sum()

    found = masked_unigram(train, dev, masking)

    assert found["mlm_loss"] == pytest.approx(loss, abs=1e-6)
    ties = np.isclose(posterior, posterior.max(0), rtol=1e-9)
    best, worst = np.where(ties, true, 0).max(0).sum(), np.where(ties, true, 1).min(0).sum()
    assert worst - 1e-6 <= found["mlm_accuracy"] <= best + 1e-6
