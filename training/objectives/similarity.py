"""Scores of embeddings on pairs of texts with a similarity, as in STS-B, and baselines without training.

Vectors of texts are compared by cosine, sparse vectors by dot product, and vectors of tokens by MaxSim, as `Rerank`
does: the first text of a pair is the query, the second one the document.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks import AnyTask
from tasks.batching import RunModel, predict
from tasks.embedding import Embedding
from tasks.metrics import correlations
from tasks.ranking import RankingExample, create_ranking
from tasks.regression import RegressionExample
from tasks.sparse_embedding import SparseEmbedding
from tasks.text.tokenizer import Tokenizer
from tasks.token_embedding import TokenEmbedding
from training.data.examples import Examples

Embed = Callable[[Sequence[str]], Sequence[np.ndarray]]
"""Function from texts to a vector [hidden] for each."""

BLOCK = 1024
"""Number of rows of a matrix product of all vectors with all."""


@dataclass(frozen=True)
class PairEvaluation:
    """Evaluation of a model on pairs of texts: what it reads, and how its predictions are scored."""

    task: AnyTask
    """Task of the examples: the model's own, or the ranking by its token vectors."""
    examples: Examples
    """Different texts of all pairs, or each pair as a query with one document."""
    score: Callable[[Sequence[Any]], dict[str, float]]
    """Function of the predictions for the examples that returns scores by name, Spearman's correlation first."""


def compares_pairs(task: AnyTask) -> bool:
    """Return whether models of a task are scored on pairs of texts with similarities."""
    return isinstance(task, Embedding | SparseEmbedding | TokenEmbedding)


def evaluate_pairs(task: AnyTask, pairs: Examples) -> PairEvaluation:
    """Return how a model is evaluated on pairs, with its predictions as served.

    Args:
        task: embedding, sparse embedding or token embedding.
        pairs: examples of regression with `text_pair` and `label`.

    Raises:
        ValueError: if vectors of tokens cannot be compared.
    """
    if isinstance(task, TokenEmbedding):
        try:
            ranking = create_ranking(task)
        except ValueError as error:
            raise ValueError(f"the model cannot compare pairs of texts by MaxSim: {error}") from error
        examples = pairs.map(lambda pair: RankingExample(pair.text, (pair.text_pair,)))
        return PairEvaluation(
            ranking, examples, lambda scores: _spearman_first(pairs, [float(found[0]) for found in scores])
        )
    located = {text: place for place, pair in pairs.located() for text in (pair.text_pair, pair.text)}
    texts = Examples((place, text) for text, place in located.items())

    def score(predictions: Sequence[Any]) -> dict[str, float]:
        found = dict(zip(texts, predictions, strict=True))
        if isinstance(task, SparseEmbedding):
            return _spearman_first(pairs, [found[pair.text].dot(found[pair.text_pair]) for pair in pairs])
        return vector_scores(pairs, lambda wanted: [found[text] for text in wanted])

    return PairEvaluation(task, texts, score)


def _spearman_first(pairs: Sequence[RegressionExample], similarities: Sequence[float]) -> dict[str, float]:
    found = correlations([pair.label or 0.0 for pair in pairs], similarities)
    return {name: found[name] for name in ("spearman", "pearson")}


def similarity_scores(task: Embedding, pairs: Sequence[RegressionExample], run: RunModel) -> dict[str, float]:
    """Return the `vector_scores` of a model, with its vectors as served."""
    return vector_scores(pairs, lambda texts: predict(task, texts, run))


def texts_of(pairs: Sequence[RegressionExample]) -> list[str]:
    """Return both texts of each pair."""
    return [text for pair in pairs for text in (pair.text, pair.text_pair or "")]


def vector_scores(pairs: Sequence[RegressionExample], embed: Embed) -> dict[str, float]:
    """Return Spearman's and Pearson's correlation of cosine and label; alignment and uniformity (lower is better).

    Alignment is computed on pairs in the top fifth of the labels' range, uniformity on all texts.

    Args:
        pairs: examples with `text_pair` and `label`.

    Source: Gao et al. 2021 (SimCSE), sections 2 and 6.
    """
    vectors, first, second = _pair_vectors(pairs, embed)
    labels = np.array([pair.label for pair in pairs], dtype=np.float64)
    alike = labels >= labels.max() - np.ptp(labels) / 5
    return _spearman_first(pairs, (first * second).sum(-1).tolist()) | {
        "alignment_loss": alignment(first[alike], second[alike]),
        "uniformity_loss": uniformity(vectors),
    }


def cosines(pairs: Sequence[RegressionExample], embed: Embed) -> list[float]:
    """Return the cosine of the vectors of each pair."""
    _, first, second = _pair_vectors(pairs, embed)
    return [float(value) for value in (first * second).sum(-1)]


def _pair_vectors(pairs: Sequence[RegressionExample], embed: Embed) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return unit vectors of all different texts [texts, hidden], and of first and second texts [pairs, hidden]."""
    texts = list(dict.fromkeys(texts_of(pairs)))
    vectors = np.stack(embed(texts))
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    rows = {text: row for row, text in enumerate(texts)}
    return (
        vectors,
        vectors[[rows[pair.text] for pair in pairs]],
        vectors[[rows[pair.text_pair or ""] for pair in pairs]],
    )


def alignment(first: np.ndarray, second: np.ndarray) -> float:
    """Return the mean squared distance of unit vectors [pairs, hidden] of equivalent texts; 0 is best, 2 is chance.

    Source: Wang and Isola 2020, section 4.
    """
    return float(np.square(first - second).sum(-1).mean())


def uniformity(vectors: np.ndarray) -> float:
    """Return the logarithm of the mean of exp(-2 * squared distance) over all pairs of unit vectors [texts, hidden].

    It is 0 if all vectors are the same, and -4 if they spread over a sphere of many dimensions.

    Source: Wang and Isola 2020, section 4; each pair counts once, as in their code.
    """
    blocks = [vectors[first : first + BLOCK] for first in range(0, len(vectors), BLOCK)]
    total = sum(np.exp(4 * (block @ vectors.T) - 4, dtype=np.float64).sum() for block in blocks)
    count = len(vectors)
    return float(np.log((total - count) / (count * (count - 1)))) if count > 1 else 0.0


def word_overlap(pairs: Sequence[RegressionExample], tokenizer: Tokenizer) -> dict[str, float]:
    """Return correlations of the labels with the fraction of shared tokens (Jaccard's index); 0 without a pair."""
    first, second = (
        [set(item.ids.tolist()) for item in tokenizer.tokenize(texts)]
        for texts in ([pair.text for pair in pairs], [pair.text_pair or "" for pair in pairs])
    )
    overlaps = [len(one & other) / max(1, len(one | other)) for one, other in zip(first, second, strict=True)]
    return correlations([pair.label or 0.0 for pair in pairs], overlaps)


def mean_of_words(word_embeddings: np.ndarray, tokenizer: Tokenizer) -> Embed:
    """Return an embedder: the mean of a text's word embeddings [vocabulary, hidden], without special tokens."""
    return lambda texts: [word_embeddings[tokens.ids].mean(axis=0) for tokens in tokenizer.tokenize(list(texts))]
