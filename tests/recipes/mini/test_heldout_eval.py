"""Scores on texts that are in no data set: own sentences, search by words and by vectors."""

from collections import Counter

import numpy as np
import pytest

from recipes.mini.heldout_eval import (
    exact_scores,
    parse_marks,
    ranked_questions,
    read_names,
    read_sentiment,
    recall,
)


@pytest.mark.parametrize(("place", "found"), [(9, 1.0), (10, 0.0)])
def test_recall(place, found):
    """A paragraph counts if fewer than ten others have the same score or a higher one."""
    scores = np.arange(20.0)[::-1][None]

    assert recall(scores, np.array([place])) == found
    assert recall(np.zeros((1, 20)), np.array([place])) == 0


def test_ranked_questions():
    """The right paragraph comes first; others are of the same article, and do not hold the answer."""

    def paragraph(text, answer):
        return {"context": text, "qas": [{"question": f"{answer}?", "answers": [{"text": answer}]}]}

    texts = [paragraph(f"text {number} of {title}", f"{number} of") for title in "ab" for number in range(3)]
    paragraphs = [*zip("aaabbb", texts, strict=True), ("c", paragraph("alone", "a"))]
    found = dict(ranked_questions([*paragraphs, ("a", paragraph("also 1 of a", "a"))]))

    assert sorted(found["1 of?"][1:]) in (["text 0 of a", "text 2 of a"], ["text 0 of b", "text 2 of b"])
    assert found["1 of?"][0] in ("text 1 of a", "text 1 of b")
    assert "alone" not in {texts[0] for texts in found.values()}


def test_marks():
    """Offsets are those of the text without marks."""
    text, names = parse_marks("[PER Ana] saw [LOC New York].")

    assert text == "Ana saw New York."
    assert {(text[start:end], kind) for start, end, kind in names} == {
        ("Ana", "PER"),
        ("New York", "LOC"),
    }


def test_texts_are_whole():
    """There are 60 sentences with 150 names of three types, and 40 sentences, half of them positive."""
    sentences, examples = read_names(), read_sentiment()
    kinds = Counter(kind for _, names in sentences for *_, kind in names)

    assert (len(sentences), kinds.total()) == (60, 150)
    assert set(kinds) == {"PER", "LOC", "ORG"}
    assert not any(mark in text for text, _ in sentences for mark in "[]")
    assert Counter(example.label for example in examples) == {"positive": 20, "negative": 20}
    assert len({example.text for example in examples}) == 40


def test_only_whole_names_count():
    """A name with another end or another type is wrong."""
    known = [{(0, 3, "PER"), (8, 16, "LOC")}, set()]
    found = [{(0, 3, "PER"), (8, 12, "LOC")}, {(1, 2, "ORG")}]

    assert exact_scores(known, found) == {
        "f1": pytest.approx(0.4),
        "precision": pytest.approx(1 / 3),
        "recall": pytest.approx(0.5),
    }
