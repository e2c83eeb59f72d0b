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
    """Each token with its frequency among the hidden ones of train, add-one smoothed over the vocabulary."""
    counts = np.ones(tokenizer.vocab_size)
    for example in train:
        np.add.at(counts, [tokenizer.token_id(token) or 0 for token in example.tokens], 1)
    log_probs = np.log(counts / counts.sum())
    hidden = np.array([tokenizer.token_id(token) or 0 for example in dev for token in example.tokens])
    return {"loss": float(-log_probs[hidden].mean()), "accuracy": float((hidden == counts.argmax()).mean())}
