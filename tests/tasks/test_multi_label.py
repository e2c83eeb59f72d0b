"""Multi-label classification: scores, thresholds, metrics and settings."""

import numpy as np
import pytest
import scipy.special
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks import settings_from_dict
from tasks.classification import (
    MULTI_LABEL,
    Classification,
    ClassificationExample,
    ClassificationPrediction,
    ClassificationSettings,
    best_thresholds,
)
from tasks.metrics import multi_label_scores, scores_by_label

LABELS = ("toxic", "insult", "threat")
ROWS = st.lists(st.tuples(st.sets(st.sampled_from(LABELS)), st.sets(st.sampled_from(LABELS))), min_size=1, max_size=20)


@pytest.fixture
def task(tokenizer):
    settings = ClassificationSettings(labels=LABELS, problem_type=MULTI_LABEL, thresholds=(0.5, 0.2, 0.9))
    return Classification(tokenizer, settings)


def predict(task, logits):
    example = ClassificationExample("a b")
    return task.decode(example, task.encode([example])[0], [{"logits": np.array(logits, np.float32)}])


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.5, 0.3, 0.8], ["threat", "toxic", "insult"]),
        ([0.4, 0.3, 0.8], ["threat", "insult"]),
        ([0.4, 0.1, 0], ["toxic"]),
    ],
)
def test_a_limit_never_cuts_off_a_selected_label(task, scores, expected):
    """The most probable label comes with all selected ones, in the order of their scores."""
    prediction = predict(task, scipy.special.logit(scores))

    assert [label for label, _ in prediction.top(1)] == expected
    assert prediction.top(None) == prediction.ranked()


def test_each_label_has_its_threshold(task):
    """A label is selected from its own threshold on, and labels are ranked by score; there may be none."""
    prediction = predict(task, scipy.special.logit([0.5, 0.3, 0.8]))

    assert prediction.selected == ("toxic", "insult")
    assert [label for label, _ in prediction.ranked()] == ["threat", "toxic", "insult"]
    assert predict(task, [-9, -9, -9]).selected == ()
    assert task.to_dict(ClassificationExample("a"), prediction)["labels"] == ["toxic", "insult"]


def indicators(rows):
    return np.array([[label in row for label in LABELS] for row in rows], dtype=int)


@settings(max_examples=30)
@given(rows=ROWS)
def test_metrics_equal_scikit_learn(rows):
    """Micro F1, macro F1 and the fraction of exact sets are scikit-learn's."""
    truth, found = [list(row[0]) for row in rows], [list(row[1]) for row in rows]
    ours, arrays = multi_label_scores(truth, found, LABELS), (indicators(truth), indicators(found))

    assert ours["micro_f1"] == pytest.approx(sklearn.metrics.f1_score(*arrays, average="micro", zero_division=0))
    assert ours["macro_f1"] == pytest.approx(sklearn.metrics.f1_score(*arrays, average="macro", zero_division=0))
    assert ours["exact_match"] == pytest.approx(sklearn.metrics.accuracy_score(*arrays))
    by_label = np.array(sklearn.metrics.precision_recall_fscore_support(*arrays, average=None, zero_division=0)).T
    assert [[*scores.values()] for scores in scores_by_label(truth, found, LABELS).values()] == pytest.approx(by_label)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 30))
def test_thresholds_have_the_best_f1(seed, count):
    """No threshold has a higher F1 of its label than the chosen one, by scikit-learn; ties of scores included."""
    rng = np.random.default_rng(seed)
    scores = np.round(rng.random((count, 3)), 1).astype(np.float32)
    truths = rng.random((count, 3)) < 0.4
    examples = [ClassificationExample("a", labels=tuple(np.array(LABELS)[row])) for row in truths]

    thresholds = best_thresholds(examples, [ClassificationPrediction(LABELS, row) for row in scores], LABELS)

    for column, threshold in enumerate(thresholds):
        true, values = truths[:, column], scores[:, column].astype(np.float64)
        assert 0 <= threshold <= 1
        if not true.any():
            assert threshold == 0.5
            continue
        precision, recall, _ = sklearn.metrics.precision_recall_curve(true, values)
        every = 2 * precision * recall / np.maximum(precision + recall, 1e-9)
        assert sklearn.metrics.f1_score(true, values >= threshold, zero_division=0) == pytest.approx(every.max())


def test_score_uses_the_selected_labels(task):
    """The task is scored on the labels that reach their threshold; an example without labels counts, too."""
    examples = [ClassificationExample("a", labels=labels) for labels in (("toxic", "insult"), (), ("threat",))]
    predictions = [predict(task, logits) for logits in ([9, 9, -9], [-9, -9, -9], [9, -9, 9])]

    assert task.score(examples, predictions) == {
        "micro_f1": pytest.approx(6 / 7),
        "macro_f1": pytest.approx((2 / 3 + 1 + 1) / 3),
        "exact_match": pytest.approx(2 / 3),
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"thresholds": [0.5, 0.5, 0.5]}, "thresholds need problem_type multi_label_classification"),
        ({"problem_type": MULTI_LABEL, "thresholds": [0.5]}, "a threshold for each label: `1` thresholds, `3` labels"),
        ({"problem_type": MULTI_LABEL, "thresholds": [0.5, 0.5, 2]}, "thresholds must be at most 1: `2.0`"),
    ],
)
def test_wrong_settings(values, message):
    """Unknown problem types and thresholds that do not fit the labels are errors of one line."""
    with pytest.raises(ValueError, match=message) as caught:
        settings_from_dict("classification", {"labels": [*LABELS], **values})

    assert "\n" not in str(caught.value)
