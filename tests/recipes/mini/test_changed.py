"""Questions that were changed so that their text does not answer them."""

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.mini.changed import changed_question
from recipes.mini.data import merge, with_changed

FAIR = "The fair opened in Lyon in 1894 and closed in Nancy in 1899. It was the largest of the decade."


def changes(question, answer, context=FAIR):
    """Return every change of many draws."""
    made = (changed_question(question, context, [answer], random.Random(seed)) for seed in range(200))
    return {question for question in made if question}


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        ("When did the fair open?", "1894", "When did the fair close?"),
        ("Which fair opened first?", "The fair", "Which fair opened last?"),
        ("What opened in Lyon?", "The fair", "What opened in Nancy?"),
        ("What closed in 1899?", "The fair", "What closed in 1894?"),
        ("Where was the fair?", "Lyon", "Where wasn't the fair?"),
        ("Which was the largest of the decade?", "The fair", "Which was the smallest of the decade?"),
    ],
)
def test_each_rule(question, answer, expected):
    """Opposites, names, numbers and negations are exchanged."""
    assert expected in changes(question, answer)


@pytest.mark.parametrize(
    ("question", "answer", "unwanted"),
    [
        ("How long was the fair?", "years", "How short was the fair?"),  # asks for the same
        ("Where did it open, not close?", "Lyon", "Where didn't it open, not close?"),  # negated before
        ("What opened in Lyon?", "Nancy", "What opened in Nancy?"),  # tells the answer
    ],
)
def test_questions_with_the_same_answer_are_not_made(question, answer, unwanted):
    """Degrees are not turned around, nothing is negated twice, and no answer gets into a question."""
    assert unwanted not in changes(question, answer)


WORDS = st.sampled_from(
    "Who when did was the fair largest first Lyon Nancy 1894 1899 open, closed? it café 北京 isn't".split()
)
TEXTS = st.lists(WORDS, max_size=12).map(" ".join)


@given(TEXTS, TEXTS, TEXTS, st.integers(0, 9))
def test_a_change_is_repeatable(question, context, answer, seed):
    """A changed question differs by more than its case, and the same draw repeats it."""
    made = changed_question(question, context, [answer], random.Random(seed))

    assert made == changed_question(question, context, [answer], random.Random(seed))
    if made is not None:
        assert made.lower() != question.lower()


def test_changed_questions_stand_beside_their_originals():
    """A changed question follows its original without an answer; ids are unique, and no answerable question is lost."""
    asked = [{"question": "When did the fair open?", "answers": [{"text": "1894"}]} for _ in range(4)]
    articles = [
        {
            "title": title,
            "paragraphs": [
                {"context": f"{title}: {FAIR} {n}", "qas": [q | {"id": f"{title}{n}-{k}"} for k, q in enumerate(asked)]}
                for n in range(20)
            ],
        }
        for title in "ab"
    ]

    made = with_changed(merge([{"data": articles}]), random.Random(0))

    items = [item for _, paragraph in made for item in paragraph["qas"]]
    ids = [item["id"] for item in items]
    assert len(set(ids)) == len(ids)
    assert sum(bool(item["answers"]) for item in items) == 160
    kinds = Counter(number.rsplit("-", 1)[-1][:5] for number in ids if number.count("-") > 1)
    assert 90 < kinds["chang"] < 150
    for before, item in pairwise(items):
        if item["id"].endswith("-changed"):
            assert item["is_impossible"]
            assert item["id"].startswith(before["id"])
