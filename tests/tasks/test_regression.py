"""Regression: a number for each text or pair of texts."""

import numpy as np
import pytest
import scipy.special

from tasks.regression import Regression, RegressionExample, RegressionSettings


@pytest.fixture
def task(tokenizer):
    return Regression(tokenizer, RegressionSettings(max_seq_length=8))


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
