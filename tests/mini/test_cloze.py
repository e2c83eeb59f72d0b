"""Questions that text asks of itself."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini.cloze import questions

WORDS = st.sampled_from(["the", "Mary", "Anna", "house", "1984", "of", "remembered", "saw", "O'Neill", "New", "York"])
SENTENCES = st.lists(WORDS, min_size=4, max_size=14).map(lambda words: " ".join(words).capitalize() + ".")


@given(st.lists(SENTENCES, min_size=1, max_size=6), st.integers(0, 100))
def test_answers_stand_where_they_are_said_to(sentences, seed):
    """Each is the context's own words; sentence and context together are the paragraph, with `what` in the gap."""
    found = questions(" ".join(sentences), random.Random(seed))

    if found:
        context, (question,) = found
        assert question["answers"]
        for answer in question["answers"]:
            start, text = answer["answer_start"], answer["text"]
            assert context[start : start + len(text)] == text
        filled = question["question"].rstrip("?").replace("what", text, 1)
        assert any(filled == sentence.rstrip(" .") for sentence in sentences)


def test_what_is_said_twice_is_asked_for():
    """Names rather than common words, the longest of a run, in full sentences."""
    paragraph = (
        "In 1879 Albert Einstein was born in the old town of Ulm. He was the first child of the family. "
        "Later the city of Ulm honoured Albert Einstein with a fountain near his old house."
    )

    found = {questions(paragraph, random.Random(seed))[1][0]["answers"][0]["text"] for seed in range(30)}

    assert found == {"Albert Einstein", "Ulm"}


@pytest.mark.parametrize(
    "paragraph",
    ["", "One sentence alone is here.", "Nothing is said here. It goes on like that. Then there is a third one."],
)
def test_paragraphs_that_say_nothing_twice_ask_nothing(paragraph):
    """None."""
    assert questions(paragraph, random.Random(0)) is None
