"""Masked language modelling: distributions over the vocabulary at each [MASK]."""

import re

import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tasks.base import InvalidExamplesError
from tasks.masked_lm import ClozeExample, MaskedLM, MaskedLMSettings, MaskPrediction, log_softmax
from tasks.text.tokenizer import Tokenizer
from tests import toy_tokenizers

LOGITS = arrays(
    np.float32,
    array_shapes(min_dims=1, max_dims=2, min_side=1, max_side=6),
    elements=st.floats(-(2.0**100), 2.0**100, width=32) | st.floats(-20, 20, width=32),
)


@pytest.fixture
def task(tokenizer):
    return MaskedLM(tokenizer, MaskedLMSettings(max_seq_length=16))


@given(logits=LOGITS)
def test_log_softmax_equals_scipy(logits):
    """Log softmax equals scipy's, also for logits whose exponential overflows."""
    log_probs = log_softmax(logits)

    assert log_probs.dtype == np.float32
    expected = scipy.special.log_softmax(logits.astype(np.float64), axis=-1)
    np.testing.assert_allclose(log_probs, expected, rtol=1e-6, atol=1e-30)


def test_decode_reads_the_masks_in_the_order_of_the_text(task):
    """The prediction has a row for each [MASK], in order, also at the start and end of a text."""
    example = ClozeExample("[MASK] a [MASK]")
    features = task.encode([example])[0]
    logits = np.zeros((5, task.tokenizer.vocab_size), np.float32)
    logits[1, 7], logits[2, 8], logits[3, 9] = 10, 99, 20

    prediction = task.decode(example, features, [{"logits": logits}])

    assert prediction.log_probs.shape == (2, task.tokenizer.vocab_size)
    assert [prediction.top(mask, 1)[0][0] for mask in (0, 1)] == [7, 9]
    np.testing.assert_allclose(np.exp(prediction.log_probs).sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("kind", toy_tokenizers.KINDS)
def test_the_mask_is_that_of_the_tokenizer(kind):
    """A text has the mask token of the model's tokenizer, and an error about a text without one names it."""
    task = MaskedLM(Tokenizer(toy_tokenizers.KINDS[kind]()), MaskedLMSettings(max_seq_length=16))
    mask, other = ("[MASK]", "<mask>") if kind in ("wordpiece", "modernbert", "deberta") else ("<mask>", "[MASK]")

    (features,) = task.encode([ClozeExample(f"The {mask} cat")])[0]

    assert task.tokenizer.mask_token == mask
    assert (features.input_ids == task.mask_id).sum() == 1
    with pytest.raises(InvalidExamplesError, match=f"no `{re.escape(mask)}` among the tokens"):
        task.encode([ClozeExample(f"The {other} cat")])


def test_ids_beyond_the_vocabulary_are_not_predicted(task):
    """Logits of a padded vocabulary beyond the tokenizer's are neither predicted nor normalised over."""
    vocab_size = task.tokenizer.vocab_size
    example = ClozeExample("[MASK]")
    logits = np.zeros((3, vocab_size + 10), np.float32)
    logits[1, vocab_size:] = 5

    prediction = task.decode(example, task.encode([example])[0], [{"logits": logits}])

    assert prediction.log_probs.shape == (1, vocab_size)
    np.testing.assert_array_equal(prediction.log_probs, log_softmax(logits[1:2])[:, :vocab_size])
    assert len(prediction.top(0, 5)) == 5


def make_prediction(task, *rows):
    """Return distributions with the given {token: probability}, and 0 for other tokens."""
    probs = np.full((len(rows), task.tokenizer.vocab_size), 1e-9, np.float32)
    for row, values in zip(probs, rows, strict=True):
        for token, probability in values.items():
            row[task.tokenizer.token_id(token)] = probability
    return MaskPrediction(np.log(probs))


def test_score(task):
    """The loss is the mean of -ln p(token) over all masks, and accuracy counts masks with the right top token."""
    predictions = [make_prediction(task, {"a": 0.5, "b": 0.25}, {"a": 0.5, "b": 0.25}), make_prediction(task, {"c": 1})]
    examples = [ClozeExample("[MASK] [MASK]", ("a", "b")), ClozeExample("[MASK]", ("c",))]

    scores = task.score(examples, predictions)

    assert scores == {"loss": pytest.approx((np.log(2) + np.log(4) + 0) / 3), "accuracy": pytest.approx(2 / 3)}


def test_a_token_outside_of_the_vocabulary_cannot_be_scored(task):
    """The error names a token that is not in the vocabulary."""
    with pytest.raises(ValueError, match="not a token of the vocabulary: `zebra`"):
        task.score([ClozeExample("[MASK]", ("zebra",))], [make_prediction(task, {"a": 1})])


@given(st.lists(st.integers(-3, 0), min_size=1, max_size=12), st.integers(1, 15))
def test_top_of_equals(values, count):
    """Equally probable tokens are ranked by id, for any number of tokens."""
    prediction = MaskPrediction(np.array([values], dtype=np.float32))
    ranked = sorted(range(len(values)), key=lambda token_id: (-values[token_id], token_id))

    assert [token_id for token_id, _ in prediction.top(0, count)] == ranked[:count]
