"""Vectors out of hidden states."""

import numpy as np
import pytest

from tasks.embedding import Embedding, EmbeddingSettings

HIDDEN = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
"""Of `[CLS] a b [SEP]`."""


def embed(tokenizer, hidden, **values):
    task = Embedding(tokenizer, EmbeddingSettings(**values))
    return task.decode("a b", task.encode(["a b"])[0], [{"last_hidden_state": hidden}])


def test_cls(tokenizer):
    """The hidden state of the first token."""
    assert embed(tokenizer, HIDDEN, pooling="cls").tolist() == HIDDEN[0].tolist()


def test_mean(tokenizer):
    """Over all tokens, specials included."""
    expected = HIDDEN.astype(np.float64).mean(axis=0)

    np.testing.assert_allclose(embed(tokenizer, HIDDEN, pooling="mean"), expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_normalize(tokenizer, pooling, dtype):
    """A float32 vector of length 1 in the same direction, whatever the graph returns."""
    plain = embed(tokenizer, HIDDEN.astype(dtype), pooling=pooling)
    unit = embed(tokenizer, HIDDEN.astype(dtype), pooling=pooling, normalize=True)

    assert unit.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(unit), 1, rtol=1e-3)
    np.testing.assert_allclose(unit * np.linalg.norm(plain), plain, rtol=1e-2)


def test_a_zero_vector_stays_zero(tokenizer):
    """No division by zero."""
    assert not embed(tokenizer, np.zeros((4, 8), np.float32), normalize=True).any()


def test_with_settings(tokenizer):
    """A request may ask for another pooling; an unknown one is refused, and the task itself does not change."""
    task = Embedding(tokenizer, EmbeddingSettings())

    changed = task.with_settings(pooling="mean", normalize=True)

    assert changed.settings == EmbeddingSettings(pooling="mean", normalize=True)
    assert task.with_settings() is task
    assert task.settings == EmbeddingSettings()
    with pytest.raises(ValueError, match=r"unknown pooling: `max` \(one of: cls, mean\)"):
        task.with_settings(pooling="max")
