"""Scores of predictions against the truth, by their official definitions: fractions of 1, or correlations."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import SequenceMatcher

import numpy as np

from tasks.languages import split_characters, written_without_spaces
from tasks.tags import chunks

CHARACTERS = " (characters)"
"""Ends the names of scores of answers that were counted by characters."""


def is_loss(name: str) -> bool:
    """Whether less of a score is better. A label may be called so, too: its F1 is none."""
    return name.endswith(("loss", "error")) and "f1_" not in name


def headline(scores: Mapping[str, float]) -> tuple[str, float] | None:
    """The first of scores that is no loss: what a model is judged by; None where there are none."""
    return next(((name, score) for name, score in scores.items() if not is_loss(name)), None)


def accuracy(labels: Sequence[object], predictions: Sequence[object]) -> float:
    """Share of predictions that equal their label."""
    return float(np.mean([label == prediction for label, prediction in zip(labels, predictions, strict=True)]))


def macro_f1(labels: Sequence[str], predictions: Sequence[str]) -> float:
    """Mean over the labels seen (in truth or prediction) of each label's F1; 0 for a label never found."""
    true, predicted = Counter(labels), Counter(predictions)
    correct = Counter(label for label, prediction in zip(labels, predictions, strict=True) if label == prediction)
    return float(np.mean([2 * correct[label] / (true[label] + predicted[label]) for label in true | predicted]))


def label_f1(labels: Sequence[str], predictions: Sequence[str], label: str) -> float:
    """F1 of one label; 0 where it is neither true nor predicted."""
    hits = sum(true == predicted == label for true, predicted in zip(labels, predictions, strict=True))
    return 2 * hits / max(1, list(labels).count(label) + list(predictions).count(label))


def matthews_correlation(labels: Sequence[str], predictions: Sequence[str]) -> float:
    """Correlation of truth and prediction, for any number of labels; 0 where either is constant.

    Source: Gorodkin 2004, "Comparing two K-category assignments by a K-category correlation coefficient".
    """
    true, predicted = Counter(labels), Counter(predictions)
    total, hits = len(labels), sum(map(str.__eq__, labels, predictions))
    covariance = hits * total - sum(true[label] * predicted[label] for label in true)
    variances = [total**2 - sum(count**2 for count in counts.values()) for counts in (true, predicted)]
    return float(covariance / np.sqrt(float(variances[0]) * variances[1])) if all(variances) else 0.0


def classification_scores(
    labels: Sequence[str], predictions: Sequence[str], names: Sequence[str] = ()
) -> dict[str, float]:
    """Accuracy, macro-averaged F1, Matthews correlation (GLUE's score of CoLA) and, of two labels, the F1 of each (that
    of the positive one is GLUE's score of MRPC and QQP).

    Args:
        names: all labels of the model.
    """
    scores = {
        "accuracy": accuracy(labels, predictions),
        "macro_f1": macro_f1(labels, predictions),
        "matthews": matthews_correlation(labels, predictions),
    }
    return scores | {f"f1_{name}": label_f1(labels, predictions, name) for name in names if len(names) == 2}


def regression_scores(labels: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """Pearson's and Spearman's correlation (GLUE's scores of STS-B), between -1 and 1, and the mean absolute error.

    Args:
        labels: true numbers; the error is in their unit.
        predictions: as many numbers.

    Returns:
        Scores by name; correlations are 0 where either side is constant, and all are NaN where a number is none.
    """
    truth, found = np.asarray(labels, dtype=np.float64), np.asarray(predictions, dtype=np.float64)
    return correlations(labels, predictions) | {"mean_absolute_error": float(np.abs(truth - found).mean())}


def correlations(labels: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """Pearson's and Spearman's correlation, as in `regression_scores`."""
    if len(labels) != len(predictions):
        raise ValueError(f"{len(predictions)} predictions for {len(labels)} labels: one list is shorter")
    truth, found = np.asarray(labels, dtype=np.float64), np.asarray(predictions, dtype=np.float64)
    return {"pearson": _correlation(truth, found), "spearman": _correlation(_ranks(truth), _ranks(found))}


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return float("nan")
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, equal values sharing the mean of theirs; NaN has none."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.where(np.isnan(values), np.nan, (np.cumsum(counts) - (counts + 1) / 2)[inverse])


def tagging_scores(
    tags: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]], labels: Collection[str] = ()
) -> dict[str, float]:
    """F1, precision and recall over entities (right when type and both ends are), and accuracy over words.

    Args:
        labels: all tags there are, as `chunks` takes them; by default those of `tags` and `predictions`.
    """
    known = frozenset(labels or {tag for rows in (tags, predictions) for item in rows for tag in item})
    true, found = (
        {(row, *chunk) for row, item in enumerate(rows) for chunk in chunks(item, known)}
        for rows in (tags, predictions)
    )
    hits = len(true & found)
    pairs = [pair for one, other in zip(tags, predictions, strict=True) for pair in zip(one, other, strict=True)]
    return {
        "f1": 2 * hits / max(1, len(true) + len(found)),
        "precision": hits / max(1, len(found)),
        "recall": hits / max(1, len(true)),
        "accuracy": float(np.mean([one == other for one, other in pairs])),
    }


def squad_scores(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], *, characters: bool | None = None
) -> dict[str, float]:
    """Exact match and F1 of SQuAD: for each question the best over its accepted answers, averaged over questions; where
    some questions have answers and some have none, over either kind too (HasAns, NoAns).

    Args:
        predictions: predicted texts, empty for "no answer".
        answers: accepted texts of each question; none for an unanswerable one, which only an empty prediction meets.
        characters: score by the rule of CMRC 2018, and say so in the names of the scores (`f1 (characters)`), rather
            than by SQuAD's; decided by the script of the answers where not given.

    Source: the official evaluation scripts of SQuAD v1.1 and v2.0 (which agree on answerable questions). As in the
    v2.0 script, accepted answers that normalise to nothing are left out. By characters, the script of CMRC 2018: texts
    match when their `split_characters` do, and F1 is that of their longest common run.
    """
    if characters is None:
        characters = written_without_spaces([text for accepted in answers for text in accepted])
    exact, f1 = squad_example_scores(predictions, answers, characters=characters)
    scores = {"exact_match": float(exact.mean()), "f1": float(f1.mean())}
    has_answer = np.array([bool(accepted) for accepted in answers])
    if has_answer.any() and not has_answer.all():
        for kind, chosen in (("has_answer", has_answer), ("no_answer", ~has_answer)):
            scores |= {f"{kind}_exact_match": float(exact[chosen].mean()), f"{kind}_f1": float(f1[chosen].mean())}
    return {name + CHARACTERS: score for name, score in scores.items()} if characters else scores


def squad_example_scores(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], *, characters: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Exact match and F1 of each question, [questions] float64 (see `squad_scores`)."""
    normalize: Callable[[str], Sequence[str]] = split_characters if characters else normalize_answer
    answer_f1 = run_f1 if characters else token_f1
    exact, f1 = [], []
    for prediction, accepted in zip(predictions, answers, strict=True):
        golds = [answer for answer in accepted if normalize(answer)] or [""]
        exact.append(max(normalize(prediction) == normalize(gold) for gold in golds))
        f1.append(max(answer_f1(prediction, gold) for gold in golds))
    return np.array(exact, dtype=np.float64), np.array(f1, dtype=np.float64)


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


def run_f1(prediction: str, gold: str) -> float:
    """F1 of the longest run of characters (and words of other scripts) in both; 1 when both are empty, 0 when one is.

    Source: `calc_f1_score` of the evaluation script of CMRC 2018.
    """
    predicted, true = split_characters(prediction), split_characters(gold)
    if not predicted or not true:
        return float(predicted == true)
    common = SequenceMatcher(None, predicted, true, autojunk=False).find_longest_match().size
    return 2 * common / (len(predicted) + len(true))


_PUNCTUATION = frozenset(string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
