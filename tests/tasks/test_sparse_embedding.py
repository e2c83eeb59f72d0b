"""Sparse embeddings: weights of tokens, pruned."""

import numpy as np
import pytest

from tasks.sparse_embedding import SPARSE_VECTOR, SparseEmbedding, SparseEmbeddingSettings

WEIGHTS = np.array([0, 0.5, 2, 0, 0.5, 0.25, 2, 0, 0.5], np.float32)
ANY, ONE = SparseEmbeddingSettings(), SparseEmbeddingSettings(top_k=1)


def decode(tokenizer, weights=WEIGHTS, settings=ANY, **options):
    task = SparseEmbedding(tokenizer, settings, **options)
    return task.decode("a b", task.encode(["a b"])[0], [{SPARSE_VECTOR: weights}])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [2, 6, 1, 4, 8, 5]),
        ({"top_k": 4}, [2, 6, 1, 4]),
        ({"settings": ONE}, [2]),
        ({"settings": ONE, "top_k": 3}, [2, 6, 1]),
        ({"top_k": 100}, [2, 6, 1, 4, 8, 5]),
    ],
)
def test_the_largest_weights_are_kept(tokenizer, options, expected):
    """Weights above 0, largest first, equal ones by id; a request's number replaces that of the settings."""
    found = decode(tokenizer, **options)

    assert found.indices.tolist() == expected
    assert found.values.tolist() == WEIGHTS[expected].tolist()


def test_similarity(tokenizer):
    """The dot product of two vectors is that of all their weights; one without common tokens is 0."""
    weights = np.maximum(np.random.default_rng(0).normal(size=(2, tokenizer.vocab_size)), 0).astype(np.float32)
    first, second = (decode(tokenizer, row) for row in weights)

    assert first.dot(second) == pytest.approx(float(weights[0] @ weights[1]))
    assert first.dot(decode(tokenizer, np.zeros(9, np.float32))) == 0


def test_ids_without_a_token_are_left_out(tokenizer):
    """A network may have more ids than the tokenizer, for padding."""
    found = decode(tokenizer, np.ones(tokenizer.vocab_size + 8, np.float32))

    assert sorted(found.indices) == list(range(tokenizer.vocab_size))
