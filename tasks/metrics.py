"""Scores by their official definitions: fractions between 0 and 1, correlations, losses and errors."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import SequenceMatcher

import numpy as np

from tasks.tags import chunks, has_no_scheme
from tasks.text.languages import split_characters, written_without_spaces

CHARACTERS_SUFFIX = " (characters)"
"""End of the names of scores that were computed by characters."""


def is_loss(name: str) -> bool:
    """Return whether a lower score is better. An F1 is never a loss, even of a label called `loss`."""
    return name.endswith(("loss", "error")) and "f1_" not in name


def main_score(scores: Mapping[str, float]) -> tuple[str, float] | None:
    """Return the first score that is no loss, by which a model is judged; None if there is none."""
    return next(((name, score) for name, score in scores.items() if not is_loss(name)), None)


def accuracy(labels: Sequence[object], predictions: Sequence[object]) -> float:
    """Return the fraction of predictions that equal their label."""
    return float(np.mean([label == prediction for label, prediction in zip(labels, predictions, strict=True)]))


def scores_by_class(
    names: Iterable[str], true: Counter[str], predicted: Counter[str], hits: Counter[str]
) -> dict[str, dict[str, float]]:
    """Return precision, recall, F1 and support (how often it is true) of each class; a ratio without cases is 0.

    Args:
        names: all classes of the model.
        true: number of true cases of each class.
        predicted: number of predicted cases.
        hits: number of cases that are both.
    """
    return {
        name: {
            "precision": hits[name] / max(1, predicted[name]),
            "recall": hits[name] / max(1, true[name]),
            "f1": 2 * hits[name] / max(1, true[name] + predicted[name]),
            "support": true[name],
        }
        for name in names
    }


def scores_by_label(
    labels: Sequence[Collection[str]], predictions: Sequence[Collection[str]], names: Iterable[str]
) -> dict[str, dict[str, float]]:
    """Return the scores of each label as `scores_by_class`; examples have one label each, or any number."""
    return scores_by_class(names, *_label_counts(labels, predictions))


def _label_counts(
    labels: Sequence[Collection[str]], predictions: Sequence[Collection[str]]
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Return how often each label is true, predicted, and both."""
    true, predicted = (Counter(name for items in rows for name in {*items}) for rows in (labels, predictions))
    hits = Counter(name for one, other in zip(labels, predictions, strict=True) for name in {*one} & {*other})
    return true, predicted, hits


def classification_scores(
    labels: Sequence[str], predictions: Sequence[str], names: Sequence[str] = ()
) -> dict[str, float]:
    """Return accuracy, macro F1, Matthews correlation (GLUE's CoLA) and, with two labels, the F1 of each (the F1 of
    the positive label is GLUE's score of MRPC and QQP).

    Macro F1 is the mean F1 of the labels that occur in labels or predictions. The correlation is 0 if labels or
    predictions are constant.

    Args:
        names: all labels of the model.

    Source: Gorodkin 2004, "Comparing two K-category assignments by a K-category correlation coefficient".
    """
    true, predicted, total = Counter(labels), Counter(predictions), len(labels)
    hits = Counter(label for label, prediction in zip(labels, predictions, strict=True) if label == prediction)
    f1 = {label: 2 * hits[label] / (true[label] + predicted[label]) for label in true | predicted}
    covariance = hits.total() * total - sum(true[label] * predicted[label] for label in true)
    variances = [total**2 - sum(count**2 for count in counts.values()) for counts in (true, predicted)]
    deviations = np.sqrt(float(variances[0]) * variances[1])
    scores = {
        "accuracy": accuracy(labels, predictions),
        "macro_f1": float(np.mean(list(f1.values()))),
        "matthews": float(covariance / deviations) if deviations else 0.0,
    }
    return scores | {f"f1_{name}": f1.get(name, 0.0) for name in names if len(names) == 2}


def multi_label_scores(
    labels: Sequence[Collection[str]], predictions: Sequence[Collection[str]], names: Sequence[str]
) -> dict[str, float]:
    """Return micro F1 (over all pairs of text and label), macro F1 (mean over labels) and the fraction of exact sets.

    Args:
        names: all labels of the model. A label that occurs neither in labels nor in predictions has an F1 of 0.
    """
    true, predicted, hits = _label_counts(labels, predictions)
    return {
        "micro_f1": 2 * hits.total() / max(1, true.total() + predicted.total()),
        "macro_f1": float(np.mean([2 * hits[name] / max(1, true[name] + predicted[name]) for name in names])),
        "exact_match": accuracy([{*items} for items in labels], [{*items} for items in predictions]),
    }


def regression_scores(labels: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """Return Pearson's and Spearman's correlation (GLUE's scores of STS-B) and the mean absolute error.

    Args:
        labels: true numbers; the error is in their unit.

    Returns:
        Scores by name. Correlations are 0 if either list is constant; all scores are NaN if a number is not finite.
    """
    truth, found = np.asarray(labels, dtype=np.float64), np.asarray(predictions, dtype=np.float64)
    return correlations(labels, predictions) | {"mean_absolute_error": float(np.abs(truth - found).mean())}


def correlations(labels: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """Return Pearson's and Spearman's correlation, as in `regression_scores`."""
    if len(labels) != len(predictions):
        raise ValueError(f"need one prediction per label: `{len(predictions)}` predictions, `{len(labels)}` labels")
    truth, found = np.asarray(labels, dtype=np.float64), np.asarray(predictions, dtype=np.float64)
    return {"pearson": _correlation(truth, found), "spearman": _correlation(_ranks(truth), _ranks(found))}


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return float("nan")
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks from 0; equal values get the mean of their ranks, NaN gets NaN."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.where(np.isnan(values), np.nan, (np.cumsum(counts) - (counts + 1) / 2)[inverse])


def tagging_scores(
    tags: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]], labels: Collection[str] = ()
) -> dict[str, float]:
    """Return F1, precision and recall of entities (correct if type and both ends are), and accuracy of words.

    Accuracy comes first if no tag has a prefix and none is `O`, as with parts of speech, which are no entities.

    Args:
        labels: all labels of the model, as for `chunks`; by default those of `tags` and `predictions`.
    """
    known = frozenset(labels or {tag for rows in (tags, predictions) for item in rows for tag in item})
    true, found = (_entities(rows, known) for rows in (tags, predictions))
    hits = len(true & found)
    pairs = [pair for one, other in zip(tags, predictions, strict=True) for pair in zip(one, other, strict=True)]
    of_words = {"accuracy": float(np.mean([one == other for one, other in pairs]))}
    of_entities = {
        "f1": 2 * hits / max(1, len(true) + len(found)),
        "precision": hits / max(1, len(found)),
        "recall": hits / max(1, len(true)),
    }
    return of_words | of_entities if has_no_scheme(known) else of_entities | of_words


def scores_by_type(
    tags: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]], labels: Collection[str]
) -> dict[str, dict[str, float]]:
    """Return the scores of each type of entity; of each tag, counted by words, if tags are no entities.

    Args:
        labels: all labels of the model, as for `chunks`.
    """
    if has_no_scheme(labels):
        true, found = ([(tag,) for row in rows for tag in row] for rows in (tags, predictions))
        return scores_by_label(true, found, labels)
    known = frozenset(labels)
    entities, predicted = (_entities(rows, known) for rows in (tags, predictions))
    counts = (Counter(kind for _, kind, *_ in items) for items in (entities, predicted, entities & predicted))
    return scores_by_class(sorted({kind for _, kind, *_ in _entities([[tag] for tag in labels], known)}), *counts)


def _entities(rows: Sequence[Sequence[str]], labels: Collection[str]) -> set[tuple[int, str, int, int]]:
    """Return the entities of some sentences, as (sentence, type, first word, last word)."""
    return {(number, *chunk) for number, tags in enumerate(rows) for chunk in chunks(tags, labels)}


def squad_scores(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], *, characters: bool | None = None
) -> dict[str, float]:
    """Return exact match and F1 of SQuAD: the best over the accepted answers of each question, averaged over questions.

    If some questions have answers and some have none, also the averages over each kind (HasAns, NoAns).

    Args:
        predictions: predicted texts, empty for "no answer".
        answers: accepted texts of each question; none for an unanswerable one, for which only an empty prediction is
            right.
        characters: score by characters, as CMRC 2018 does, and mark the names of the scores (`f1 (characters)`); None
            to decide by the script of the answers.

    Source: the official evaluation scripts of SQuAD v1.1 and v2.0, which agree on answerable questions. As in the v2.0
    script, accepted answers that normalize to nothing are ignored. By characters: the evaluation script of CMRC 2018,
    where texts match if their `split_characters` do, and F1 is that of their longest common substring.
    """
    if characters is None:
        characters = written_without_spaces([text for accepted in answers for text in accepted])
    exact, f1 = squad_example_scores(predictions, answers, characters=characters)
    scores = {"exact_match": float(exact.mean()), "f1": float(f1.mean())}
    has_answer = np.array([bool(accepted) for accepted in answers])
    if has_answer.any() and not has_answer.all():
        for kind, chosen in (("has_answer", has_answer), ("no_answer", ~has_answer)):
            scores |= {f"{kind}_exact_match": float(exact[chosen].mean()), f"{kind}_f1": float(f1[chosen].mean())}
    return {name + CHARACTERS_SUFFIX: score for name, score in scores.items()} if characters else scores


def squad_example_scores(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], *, characters: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return exact match and F1 of each question, [questions] float64 (see `squad_scores`)."""
    normalize: Callable[[str], Sequence[str]] = split_characters if characters else normalize_answer
    answer_f1 = substring_f1 if characters else token_f1
    exact, f1 = [], []
    for prediction, accepted in zip(predictions, answers, strict=True):
        golds = [answer for answer in accepted if normalize(answer)] or [""]
        exact.append(max(normalize(prediction) == normalize(gold) for gold in golds))
        f1.append(max(answer_f1(prediction, gold) for gold in golds))
    return np.array(exact, dtype=np.float64), np.array(f1, dtype=np.float64)


def normalize_answer(text: str) -> str:
    """Lower-case a text, drop ASCII punctuation and the articles a, an, the, and collapse white space."""
    text = "".join(char for char in text.lower() if char not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def token_f1(prediction: str, gold: str) -> float:
    """Return the F1 of the bags of normalized words; 1 if both are empty, 0 if one is."""
    predicted_words, gold_words = normalize_answer(prediction).split(), normalize_answer(gold).split()
    if not predicted_words or not gold_words:
        return float(predicted_words == gold_words)
    common = sum((Counter(predicted_words) & Counter(gold_words)).values())
    return 2 * common / (len(predicted_words) + len(gold_words))


def substring_f1(prediction: str, gold: str) -> float:
    """Return the F1 of the longest common substring, in `split_characters`; 1 if both are empty, 0 if one is.

    Source: `calc_f1_score` of the evaluation script of CMRC 2018.
    """
    predicted, true = split_characters(prediction), split_characters(gold)
    if not predicted or not true:
        return float(predicted == true)
    common = SequenceMatcher(None, predicted, true, autojunk=False).find_longest_match().size
    return 2 * common / (len(predicted) + len(true))


_PUNCTUATION = frozenset(string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
