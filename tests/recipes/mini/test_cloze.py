"""Synthetic cloze questions."""

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.mini.cloze import MAX_CHARACTERS, cloze_question

WORDS = st.sampled_from(["the", "Mary", "Anna", "house", "1984", "of", "remembered", "saw", "O'Neill", "New", "York"])
ENDS = st.sampled_from([".", "!", ", Tom."])
SENTENCES = st.builds(
    lambda words, end: " ".join(words).capitalize() + end, st.lists(WORDS, min_size=4, max_size=14), ENDS
)
ASKING = {"who", "what", "which", "where", "when", "how", "year", "many", "much", "in"}


def ask(paragraph, seed):
    """Return context, question and answer; None if there is no question."""
    if not (found := cloze_question(paragraph, random.Random(seed))):
        return None
    context, question = found
    (answer,) = question["answers"]
    return context, question["question"], answer


@given(st.lists(SENTENCES, min_size=1, max_size=6), st.integers(0, 100))
def test_answers_are_at_their_stated_positions(sentences, seed):
    """The context is the whole paragraph, and the answer a part of one sentence."""
    if found := ask(" ".join(sentences), seed):
        context, _, answer = found
        assert context == " ".join(sentences)
        assert context[answer["answer_start"] :].startswith(answer["text"])
        assert any(answer["text"] in sentence for sentence in sentences)


def test_question_has_words_around_the_answer():
    """A question has most words of its sentence, nearly in order, and few of the answer and of other sentences."""
    said = "Alpha met Beta near the old Gamma when Delta saw Epsilon leave Zeta for Eta".split()
    kept = near = strange = told = first = 0
    for seed in range(300):
        _, question, answer = ask(f"Nothing else happened here. {' '.join(said)}.", seed)
        words = question.rstrip("?").split()
        places = [said.index(word) for word in words if word in said]
        kept += len(places)
        near += sum(abs(one - other) <= 6 for one, other in pairwise(places))
        strange += len(set(words) & {"Nothing", "else", "happened", "here"})
        told += len(set(words) & set(answer["text"].split()))
        first += any(question.startswith(word) for word in ASKING)

    assert kept == pytest.approx(300 * 0.65 * (len(said) - 1), rel=0.2)
    assert near > 0.9 * (kept - 300)
    assert 0 < strange < 0.1 * kept
    assert 0 < told < 0.05 * kept
    assert first == pytest.approx(210, rel=0.2)


def test_names_are_answers_more_often_than_other_words():
    """Names are preferred as answers, and common words are never answers."""
    paragraph = "Nothing is said here. The river of Thames was flowing into the wide sea."
    asked = Counter(ask(paragraph, seed)[2]["text"] for seed in range(300))

    assert set(asked) == {"river", "Thames", "flowing", "wide sea"}
    assert asked["Thames"] > 1.5 * max(asked[text] for text in ("river", "flowing", "wide sea"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1984", ("when", "what year", "in what year")),
        ("300 houses", ("how many", "how much", "what")),
        ("Anna", ("who", "what", "which")),
    ],
)
def test_question_words_fit_the_answer(text, words):
    """Question words are `when` for years, `how many` for numbers, and `who` for people."""
    found = [ask(f"Nothing is. Then it was all about {text}, and she could be in it.", seed) for seed in range(100)]
    questions_about = [question for _, question, answer in found if answer["text"] == text]

    assert questions_about
    assert all(any(word in question for word in words) for question in questions_about)


@pytest.mark.parametrize(
    "paragraph",
    ["", "One sentence alone is here today.", "It is. So was it.", "The house is red. " * (MAX_CHARACTERS // 10)],
)
def test_unsuitable_paragraphs_have_no_question(paragraph):
    """Paragraphs of one sentence, of short sentences, or above the size limit give no question."""
    assert ask(paragraph, 0) is None
