"""What a prediction without any model scores; printed beside every score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from tasks.classification import ClassificationExample
from tasks.masked_lm import ClozeExample
from tasks.metrics import classification_scores, squad_scores
from tasks.spans import SpanExample
from tasks.tokenizer import Tokenizer


def baseline(task: str, train: Sequence[Any], dev: Sequence[Any], tokenizer: Tokenizer) -> tuple[str, dict[str, float]]:
    """Name and scores on dev of the baseline of a task, fitted on train."""
    if task == "classification":
        return "majority label", majority_label(train, dev)
    if task == "spans":
        return "first words", first_words(train, dev)
    return "unigram", unigram(train, dev, tokenizer)


def majority_label(train: Sequence[ClassificationExample], dev: Sequence[ClassificationExample]) -> dict[str, float]:
    """Always the commonest label of train."""
    label = Counter(example.label or "" for example in train).most_common(1)[0][0]
    return classification_scores([example.label or "" for example in dev], [label] * len(dev))


def first_words(train: Sequence[SpanExample], dev: Sequence[SpanExample]) -> dict[str, float]:
    """Always the first words of the context, as many as an answer in train has in the median; or, if better by F1,
    always "no answer"."""
    count = int(median([len(example.answers[0].split()) for example in train if example.answers] or [0]))
    answers = [example.answers for example in dev]
    spans = squad_scores([" ".join(example.context.split()[:count]) for example in dev], answers)
    return max(spans, squad_scores([""] * len(dev), answers), key=lambda scores: scores["f1"])


def unigram(train: Sequence[ClozeExample], dev: Sequence[ClozeExample], tokenizer: Tokenizer) -> dict[str, float]:
    """Each token with its frequency among the hidden ones of train."""
    return unigram_of_counts(_hidden_counts(train, tokenizer), _hidden_counts(dev, tokenizer))


def unigram_of_counts(train: np.ndarray, dev: np.ndarray) -> dict[str, float]:
    """Each token with its frequency in train, add-one smoothed over the vocabulary.

    Args:
        train: [vocabulary] how often each token occurs.
        dev: the same, of what is to be predicted.
    """
    smoothed = train + 1.0
    loss = -(dev * np.log(smoothed / smoothed.sum())).sum() / dev.sum()
    return {"loss": float(loss), "accuracy": float(dev[smoothed.argmax()] / dev.sum())}


def _hidden_counts(examples: Sequence[ClozeExample], tokenizer: Tokenizer) -> np.ndarray:
    hidden = [tokenizer.token_id(token) or 0 for example in examples for token in example.tokens]
    return np.bincount(hidden, minlength=tokenizer.vocab_size)
