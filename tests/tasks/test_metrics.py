"""Scores equal scikit-learn's and the official SQuAD scripts', of which transformers carries a copy."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score
from transformers.data.metrics import squad_metrics

from tasks.metrics import accuracy, classification_scores, macro_f1, normalize_answer, squad_scores, token_f1

WORDS = st.sampled_from(
    ["a", "The", "an", "cat", "Cat.", "the-cat", "dog", "!", " ", "\t", "\u3000", "don't", "Éa", "«x»"]
)
ANSWERS = st.lists(WORDS, max_size=5).map(" ".join) | st.text(max_size=12)
QUESTIONS = st.lists(st.tuples(ANSWERS, st.lists(ANSWERS, max_size=3)), min_size=1, max_size=6)


@settings(deadline=None)
@given(text=ANSWERS)
def test_normalisation_equals_the_official_one(text):
    """Lower case, then punctuation, then articles, then white space."""
    assert normalize_answer(text) == squad_metrics.normalize_answer(text)


@settings(deadline=None)
@given(questions=QUESTIONS)
def test_squad_scores_equal_the_official_ones(questions):
    """Over predictions and accepted answers of any kind, empty ones included (the v2.0 rule)."""
    examples = [
        SimpleNamespace(qas_id=str(index), answers=[{"text": answer} for answer in answers])
        for index, (_, answers) in enumerate(questions)
    ]
    predictions = [prediction for prediction, _ in questions]
    by_id = {str(index): prediction for index, prediction in enumerate(predictions)}
    exact, f1 = squad_metrics.get_raw_scores(examples, by_id)

    scores = squad_scores(predictions, [answers for _, answers in questions])

    assert scores["exact_match"] == pytest.approx(sum(exact.values()) / len(questions))
    assert scores["f1"] == pytest.approx(sum(f1.values()) / len(questions))


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("The  Cat's\tmat!", "cats mat"),
        ("the-end", "theend"),
        ("a.n apple", "apple"),
        ("An A the", ""),
        ("theatre", "theatre"),
        ("«The» 5%", "« » 5"),
    ],
)
def test_normalisation_by_hand(text, normalized):
    """Punctuation goes before articles do, so that `the-end` keeps its `the` and `a.n` becomes an article."""
    assert normalize_answer(text) == normalized


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("the cat", ["Cat!"], 1, 1),
        ("black cat", ["cat"], 0, 2 / 3),
        ("cat cat cat", ["cat cat dog"], 0, 2 / 3),
        ("black cat", ["dog", "a black cat sat"], 0, 4 / 5),
        ("", [], 1, 1),
        ("cat", [], 0, 0),
        ("", ["cat"], 0, 0),
        ("", ["the", "cat"], 0, 0),
        ("the", ["a", "!"], 1, 1),
    ],
)
def test_squad_scores_by_hand(prediction, answers, exact, f1):
    """The best over the accepted answers; nothing but an empty prediction meets an unanswerable question."""
    assert squad_scores([prediction], [answers]) == {"exact_match": exact, "f1": pytest.approx(f1)}


def test_token_f1_of_empty_texts():
    """1 when both normalise to nothing, 0 when one does."""
    assert (token_f1("the", ""), token_f1("the", "cat"), token_f1("cat", "")) == (1.0, 0.0, 0.0)


LABELS = st.lists(st.tuples(*[st.sampled_from(["no", "yes", "maybe", ""])] * 2), min_size=1, max_size=30)


@settings(deadline=None)
@given(pairs=LABELS)
def test_classification_scores_equal_scikit_learn(pairs):
    """Accuracy and macro-averaged F1, whatever labels are missing from truth or prediction."""
    labels, predictions = zip(*pairs, strict=True)

    assert accuracy(labels, predictions) == pytest.approx(accuracy_score(labels, predictions))
    assert macro_f1(labels, predictions) == pytest.approx(
        f1_score(labels, predictions, average="macro", zero_division=0)
    )


def test_classification_scores_by_hand():
    """F1 of `a` is 2/3, of `b` 1/2, of `c`, predicted but never true, 0."""
    scores = classification_scores(["a", "a", "b", "b"], ["a", "b", "b", "c"])

    assert scores == {"accuracy": 0.5, "macro_f1": pytest.approx((2 / 3 + 1 / 2 + 0) / 3)}


@pytest.mark.parametrize("score", [squad_scores, classification_scores])
def test_unequal_numbers_are_refused(score):
    """A prediction too few is an error, not a shorter average."""
    with pytest.raises(ValueError, match=r"shorter|longer"):
        score(["a", "b"], ["a"])
