"""How well vectors tell the similarity of texts, over pairs with a number, as STS-B: Spearman's correlation of their
cosines with it, and what it takes to reach that without training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tasks.batching import RunModel, predict
from tasks.embedding import Embedding
from tasks.metrics import correlations
from tasks.regression import RegressionExample
from tasks.tokenizer import Tokenizer

Embed = Callable[[Sequence[str]], Sequence[np.ndarray]]
"""Texts -> a vector [hidden] each."""

BLOCK = 1024
"""Rows of a product of all vectors with all."""


def similarity_scores(task: Embedding, pairs: Sequence[RegressionExample], run: RunModel) -> dict[str, float]:
    """`vector_scores` of a model, with the vectors as they are served."""
    return vector_scores(pairs, lambda texts: predict(task, texts, run))


def texts_of(pairs: Sequence[RegressionExample]) -> list[str]:
    """Both texts of each pair."""
    return [text for pair in pairs for text in (pair.text, pair.text_pair or "")]


def vector_scores(pairs: Sequence[RegressionExample], embed: Embed) -> dict[str, float]:
    """Spearman's and Pearson's correlation of cosine and label; alignment and uniformity (lower is better).

    Alignment is taken over the pairs in the top fifth of the labels' range, uniformity over all texts.

    Args:
        pairs: each with `text_pair` and `label`.

    Source: Gao et al. 2021 (SimCSE), sections 2 and 6.
    """
    vectors, first, second = _pair_vectors(pairs, embed)
    labels = np.array([pair.label for pair in pairs], dtype=np.float64)
    alike = labels >= labels.max() - np.ptp(labels) / 5
    found = correlations(labels.tolist(), (first * second).sum(-1).tolist())
    return {
        "spearman": found["spearman"],
        "pearson": found["pearson"],
        "alignment_loss": alignment(first[alike], second[alike]),
        "uniformity_loss": uniformity(vectors),
    }


def cosines(pairs: Sequence[RegressionExample], embed: Embed) -> list[float]:
    """Of the vectors of each pair."""
    _, first, second = _pair_vectors(pairs, embed)
    return [float(value) for value in (first * second).sum(-1)]


def _pair_vectors(pairs: Sequence[RegressionExample], embed: Embed) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit vectors [texts, hidden] of all different texts, and [pairs, hidden] of the first and the second ones."""
    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.text, pair.text_pair or "")))
    vectors = _unit(np.stack(embed(texts)))
    rows = {text: row for row, text in enumerate(texts)}
    return (
        vectors,
        vectors[[rows[pair.text] for pair in pairs]],
        vectors[[rows[pair.text_pair or ""] for pair in pairs]],
    )


def alignment(first: np.ndarray, second: np.ndarray) -> float:
    """Mean squared distance of the unit vectors [pairs, hidden] of texts that mean the same; 0 is best, 2 is chance.

    Source: Wang and Isola 2020, section 4.
    """
    return float(np.square(first - second).sum(-1).mean())


def uniformity(vectors: np.ndarray) -> float:
    """Logarithm of the mean of exp(-2 * squared distance) over all pairs of unit vectors [texts, hidden].

    0 when all vectors are the same, -4 when they are spread over a sphere of many dimensions.

    Source: Wang and Isola 2020, section 4; each pair once, none of a vector with itself, as in their code.
    """
    blocks = [vectors[first : first + BLOCK] for first in range(0, len(vectors), BLOCK)]
    total = sum(np.exp(4 * (block @ vectors.T) - 4, dtype=np.float64).sum() for block in blocks)
    count = len(vectors)
    return float(np.log((total - count) / (count * (count - 1)))) if count > 1 else 0.0


def word_overlap(pairs: Sequence[RegressionExample], tokenizer: Tokenizer) -> dict[str, float]:
    """Correlations of the share of tokens that both texts have (Jaccard's index of the sets); texts without a second
    one share nothing."""
    first, second = (
        [set(item.ids.tolist()) for item in tokenizer.tokenize(texts)]
        for texts in ([pair.text for pair in pairs], [pair.text_pair or "" for pair in pairs])
    )
    shares = [len(one & other) / max(1, len(one | other)) for one, other in zip(first, second, strict=True)]
    return correlations([pair.label or 0.0 for pair in pairs], shares)


def mean_of_words(word_embeddings: np.ndarray, tokenizer: Tokenizer) -> Embed:
    """The mean of a text's word embeddings [vocabulary, hidden], without special tokens."""
    return lambda texts: [word_embeddings[tokens.ids].mean(axis=0) for tokens in tokenizer.tokenize(list(texts))]


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
