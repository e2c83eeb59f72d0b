"""Vectors of texts."""

import numpy as np
import pytest

from tasks.embedding import Embedding, EmbeddingSettings

VECTOR = np.random.default_rng(0).normal(size=8).astype(np.float32)


def embed(tokenizer, vector, **values):
    task = Embedding(tokenizer, EmbeddingSettings(**values))
    return task.decode("a b", task.encode(["a b"])[0], [{"sentence_embedding": vector}])


def test_the_vector_is_what_leaves_the_network(tokenizer):
    """Pooling is done there."""
    assert embed(tokenizer, VECTOR).tolist() == VECTOR.tolist()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_normalize(tokenizer, dtype):
    """A float32 vector of length 1 in the same direction, whatever the graph returns."""
    plain = embed(tokenizer, VECTOR.astype(dtype))
    unit = embed(tokenizer, VECTOR.astype(dtype), normalize=True)

    assert unit.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(unit), 1, rtol=1e-3)
    np.testing.assert_allclose(unit * np.linalg.norm(plain), plain, rtol=1e-2)


def test_a_zero_vector_stays_zero(tokenizer):
    """No division by zero."""
    assert not embed(tokenizer, np.zeros(8, np.float32), normalize=True).any()


def test_with_settings(tokenizer):
    """A request may ask for vectors of length 1; an unknown pooling is refused, and the task itself does not change."""
    task = Embedding(tokenizer, EmbeddingSettings())

    changed = task.with_settings(pooling="mean", normalize=True)

    assert changed.settings == EmbeddingSettings(pooling="mean", normalize=True)
    assert task.with_settings() is task
    assert task.settings == EmbeddingSettings()
    with pytest.raises(ValueError, match=r"unknown pooling: `max` \(one of: cls, mean\)"):
        task.with_settings(pooling="max")
