"""Tests of vector scores, compared with scipy and with the definitions of Wang and Isola."""

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F

from tasks.regression import RegressionExample
from tasks.text.tokenizer import Tokenizer
from training.objectives import similarity
from training.objectives.registry import best_baseline
from training.objectives.similarity import mean_of_words, uniformity, vector_scores, word_overlap


def test_scores_are_those_of_the_references(monkeypatch):
    """Correlations equal scipy's, and alignment and uniformity equal the paper's code."""
    monkeypatch.setattr(similarity, "BLOCK", 7)
    rng = np.random.default_rng(0)
    texts = [str(number) for number in range(20)]
    vectors = dict(zip(texts, rng.standard_normal((20, 5)), strict=True))
    pairs = [RegressionExample(*rng.choice(texts, 2), label=float(rng.integers(6))) for _ in range(40)]

    scores = vector_scores(pairs, lambda asked: [vectors[text] for text in asked])

    first, second = (
        F.normalize(torch.tensor(np.stack([vectors[text] for text in side])), dim=-1)
        for side in zip(*[(pair.text, pair.text_pair) for pair in pairs], strict=True)
    )
    labels, cosines = [pair.label for pair in pairs], (first * second).sum(-1)
    alike = torch.tensor(labels) >= 4
    used = {text for pair in pairs for text in (pair.text, pair.text_pair)}
    all_vectors = F.normalize(torch.tensor(np.stack([vectors[text] for text in sorted(used)])), dim=-1)

    assert scores == pytest.approx(
        {
            "spearman": scipy.stats.spearmanr(labels, cosines).statistic,
            "pearson": scipy.stats.pearsonr(labels, cosines.numpy()).statistic,
            "alignment_loss": float((first[alike] - second[alike]).norm(p=2, dim=1).pow(2).mean()),
            "uniformity_loss": float(torch.pdist(all_vectors, p=2).pow(2).mul(-2).exp().mean().log()),
        }
    )


def test_baselines(tokenizer_dir):
    """Word overlap and mean word vectors give the scores computed by hand."""
    tokenizer = Tokenizer.load(tokenizer_dir)
    pairs = [
        RegressionExample("the cat", "the cat", 5.0),
        RegressionExample("the cat", "the dog", 2.0),
        RegressionExample("the cat", "a bird", 0.0),
    ]
    ids = {text: tokenizer.tokenize([text])[0].ids.tolist() for pair in pairs for text in (pair.text, pair.text_pair)}
    sets = [(set(ids[pair.text]), set(ids[pair.text_pair])) for pair in pairs]
    embeddings = np.eye(tokenizer.vocab_size, dtype=np.float32)
    assert uniformity(np.ones((1, 4))) == 0

    overlap, mean = word_overlap(pairs, tokenizer), mean_of_words(embeddings, tokenizer)(["the cat"])[0]

    overlaps = [len(one & other) / len(one | other) for one, other in sets]
    assert overlap == pytest.approx({"spearman": 1, "pearson": scipy.stats.pearsonr([5, 2, 0], overlaps).statistic})
    counts = np.bincount(ids["the cat"], minlength=tokenizer.vocab_size)
    np.testing.assert_allclose(mean, counts / counts.sum(), rtol=1e-6)
    assert best_baseline("regression", pairs, pairs, tokenizer) == ("word overlap", overlap)
    single = [RegressionExample(pair.text, None, pair.label) for pair in pairs]
    name, scores = best_baseline("regression", single, single, tokenizer)
    assert (name, scores["pearson"], scores["spearman"]) == ("mean label", 0, 0)
