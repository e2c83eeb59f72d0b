"""Classification: probabilities over labels."""

import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tasks.classification import Classification, ClassificationExample, ClassificationSettings, softmax

LOGITS = arrays(
    np.float32,
    array_shapes(min_dims=1, max_dims=2, min_side=1, max_side=6),
    elements=st.floats(-(2.0**100), 2.0**100, width=32) | st.floats(-20, 20, width=32),
)
LABELS = ("no", "yes", "maybe")


@pytest.fixture
def task(tokenizer):
    return Classification(tokenizer, ClassificationSettings(labels=LABELS))


@given(logits=LOGITS)
def test_softmax_equals_scipy(logits):
    """Softmax equals scipy's, also for logits whose exponential overflows."""
    scores = softmax(logits)

    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, scipy.special.softmax(logits.astype(np.float64), axis=-1), rtol=1e-6, atol=1e-30)
    np.testing.assert_allclose(scores.sum(axis=-1), 1, rtol=1e-6)


def predict(task, logits):
    example = ClassificationExample("a b")
    return task.decode(example, task.encode([example])[0], [{"logits": np.array(logits, np.float32)}])


def test_decode(task):
    """The prediction keeps the order of the labels, takes the most probable one, and ranks them by score."""
    prediction = predict(task, np.log([0.2, 0.5, 0.3]))

    assert prediction.labels == LABELS
    assert prediction.label == "yes"
    assert [label for label, _ in prediction.ranked()] == ["yes", "maybe", "no"]
    assert [score for _, score in prediction.ranked()] == pytest.approx([0.5, 0.3, 0.2])


def test_score(task):
    """Scores are accuracy and macro F1: here F1 is 1 for `yes`, 2/3 for `no` and 0 for `maybe`."""
    predictions = [predict(task, logits) for logits in ([5, 0, 0], [0, 5, 0], [0, 0, 5])]
    examples = [ClassificationExample("a", label=label) for label in ("no", "yes", "no")]

    scores = task.score(examples, predictions)

    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert scores["macro_f1"] == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert not [name for name in scores if name.startswith("f1_")]
