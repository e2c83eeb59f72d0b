"""Scores of predictions against the truth, by their official definitions. All are fractions between 0 and 1."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np


def accuracy(labels: Sequence[str], predictions: Sequence[str]) -> float:
    """Share of predictions that equal their label."""
    return float(np.mean([label == prediction for label, prediction in zip(labels, predictions, strict=True)]))


def macro_f1(labels: Sequence[str], predictions: Sequence[str]) -> float:
    """Mean over the labels seen (in truth or prediction) of each label's F1; 0 for a label never found."""
    true, predicted = Counter(labels), Counter(predictions)
    correct = Counter(label for label, prediction in zip(labels, predictions, strict=True) if label == prediction)
    return float(np.mean([2 * correct[label] / (true[label] + predicted[label]) for label in true | predicted]))


def classification_scores(labels: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Accuracy and macro-averaged F1."""
    return {"accuracy": accuracy(labels, predictions), "macro_f1": macro_f1(labels, predictions)}


def squad_scores(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """Exact match and F1 of SQuAD: for each question the best over its accepted answers, averaged over questions.

    Args:
        predictions: predicted texts, empty for "no answer".
        answers: accepted texts of each question; none for an unanswerable one, which only an empty prediction meets.

    Source: the official evaluation scripts of SQuAD v1.1 and v2.0 (which agree on answerable questions). As in the
    v2.0 script, accepted answers that normalise to nothing are left out.
    """
    exact, f1 = [], []
    for prediction, accepted in zip(predictions, answers, strict=True):
        golds = [answer for answer in accepted if normalize_answer(answer)] or [""]
        exact.append(max(normalize_answer(prediction) == normalize_answer(gold) for gold in golds))
        f1.append(max(token_f1(prediction, gold) for gold in golds))
    return {"exact_match": float(np.mean(exact)), "f1": float(np.mean(f1))}


def normalize_answer(text: str) -> str:
    """Lower-case, drop ASCII punctuation and the articles a, an, the, and collapse white space."""
    text = "".join(char for char in text.lower() if char not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def token_f1(prediction: str, gold: str) -> float:
    """F1 of the bags of normalised words; 1 when both are empty, 0 when one is."""
    predicted_words, gold_words = normalize_answer(prediction).split(), normalize_answer(gold).split()
    if not predicted_words or not gold_words:
        return float(predicted_words == gold_words)
    common = sum((Counter(predicted_words) & Counter(gold_words)).values())
    return 2 * common / (len(predicted_words) + len(gold_words))


_PUNCTUATION = frozenset(string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
