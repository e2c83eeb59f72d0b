"""Regression: a number for each text or pair of texts."""

import numpy as np
import pytest
import scipy.special

from tasks.classification import Classification, ClassificationExample, ClassificationSettings
from tasks.regression import Regression, RegressionExample, RegressionSettings


@pytest.fixture
def task(tokenizer):
    return Regression(tokenizer, RegressionSettings(max_seq_length=8))


def test_texts_are_read_as_in_classification(task, tokenizer):
    """Texts and pairs are encoded like those of classification."""
    classification = Classification(tokenizer, ClassificationSettings(max_seq_length=8, labels=("no", "yes")))
    texts = [("a b", None), ("a b c d e f g h", "a b"), ("a", "a b c d e f")]

    encoded = task.encode([RegressionExample(*pair) for pair in texts])

    for (ours,), (theirs,) in zip(
        encoded, classification.encode([ClassificationExample(*pair) for pair in texts]), strict=True
    ):
        np.testing.assert_array_equal(ours.input_ids, theirs.input_ids)
        np.testing.assert_array_equal(ours.token_type_ids, theirs.token_type_ids)


def test_decode_and_score(task):
    """The prediction is the logit, scored by correlation and by mean absolute error."""
    examples = [RegressionExample("a", label=label) for label in (1.0, 2.0, 5.0)]
    features = task.encode(examples)

    outputs = [[{"logits": np.array([value], np.float32)}] for value in (0.1, 0.2, 0.3)]
    predictions = [task.decode(*items) for items in zip(examples, features, outputs, strict=True)]

    assert predictions == pytest.approx([0.1, 0.2, 0.3])
    assert task.score(examples, predictions) == {
        "pearson": pytest.approx(0.9608, abs=1e-4),
        "spearman": 1.0,
        "mean_absolute_error": pytest.approx((0.9 + 1.8 + 4.7) / 3),
    }
    assert task.to_dict(examples[0], 0.5) == {"text": "a", "text_pair": None, "value": 0.5}


@pytest.mark.parametrize("logit", [-800.0, -1.5, 0.0, 1.582, 30.0, 800.0])
def test_sigmoid_equals_scipy(tokenizer, logit):
    """With a sigmoid the prediction equals scipy's, also for logits whose exponential overflows."""
    task = Regression(tokenizer, RegressionSettings(max_seq_length=8, activation="sigmoid"))
    example = RegressionExample("a")

    prediction = task.decode(example, task.encode([example])[0], [{"logits": np.array([logit])}])

    assert isinstance(prediction, float)
    assert prediction == pytest.approx(float(scipy.special.expit(logit)), rel=1e-12)


def test_a_deviation_of_zero_is_refused():
    """A label_deviation of 0 is refused, because labels are divided by it."""
    with pytest.raises(ValueError, match=r"label_deviation must be above 0: `0.0`"):
        RegressionSettings(label_deviation=0.0)
