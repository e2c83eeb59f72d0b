"""Classification and regression: texts and pairs, probabilities over labels, and numbers."""

import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from transformers import BertTokenizer

from tasks.classification import Classification, ClassificationExample, ClassificationSettings, sigmoid, softmax
from tasks.regression import Regression, RegressionExample, RegressionSettings

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
def test_functions_equal_scipy(logits):
    """Softmax and sigmoid equal scipy's, also for logits whose exponential overflows."""
    scores = softmax(logits)

    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, scipy.special.softmax(logits.astype(np.float64), axis=-1), rtol=1e-6, atol=1e-30)
    np.testing.assert_allclose(scores.sum(axis=-1), 1, rtol=1e-6)
    np.testing.assert_allclose(sigmoid(logits), scipy.special.expit(logits.astype(np.float64)), rtol=1e-12, atol=1e-300)


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


def test_regression(tokenizer):
    """The prediction is the logit, scored by correlation and by mean absolute error; or its sigmoid."""
    task = Regression(tokenizer, RegressionSettings(max_seq_length=8))
    examples = [RegressionExample("a", label=label) for label in (1.0, 2.0, 5.0)]
    outputs = [[{"logits": np.array([value], np.float32)}] for value in (0.1, 0.2, 0.3)]

    predictions = [task.decode(*items) for items in zip(examples, task.encode(examples), outputs, strict=True)]
    (probability,) = [task.with_settings(activation="sigmoid").decode(examples[0], (), outputs[0])]

    assert predictions == pytest.approx([0.1, 0.2, 0.3])
    assert isinstance(probability, float)
    assert probability == pytest.approx(float(scipy.special.expit(np.float32(0.1))))
    assert task.score(examples, predictions) == {
        "pearson": pytest.approx(0.9608, abs=1e-4),
        "spearman": 1.0,
        "mean_absolute_error": pytest.approx((0.9 + 1.8 + 4.7) / 3),
    }
    assert task.to_dict(examples[0], 0.5) == {"text": "a", "text_pair": None, "value": 0.5}


@pytest.fixture(scope="module")
def slow(vocab, tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(vocab), encoding="utf-8")
    return BertTokenizer(str(path))


@settings(max_examples=100)
@given(num_first=st.integers(1, 20), num_second=st.integers(0, 20), max_seq_length=st.integers(8, 30))
def test_truncated_pairs_equal_transformers(tokenizer, slow, num_first, num_second, max_seq_length):
    """Long texts and pairs have the ids and token types of transformers' `longest_first`."""
    text, text_pair = "a " * num_first, "b " * num_second or None
    task = Classification(tokenizer, ClassificationSettings(max_seq_length=max_seq_length, labels=("no", "yes")))

    features = task.encode([ClassificationExample(text, text_pair)])[0][0]

    expected = slow(text, text_pair, truncation="longest_first", max_length=max_seq_length, verbose=False)

    assert features.input_ids.tolist() == expected["input_ids"]
    assert features.token_type_ids.tolist() == expected["token_type_ids"]
