"""Scores on texts that are in no data set: own sentences, search by words and by vectors."""

from collections import Counter

import numpy as np
import pytest

from bertline import Answer, RankedDocument, Ranking, Span
from recipes.mini.heldout_eval import (
    answering_scores,
    exact_scores,
    parse_marks,
    ranked_questions,
    ranking_scores,
    read_contrasts,
    read_names,
    read_sentiment,
    recall,
    reliability,
)
from tasks.spans import SpanExample


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


def test_contrasts_are_pairs():
    """20 texts have a question that they answer, and then one that they do not."""
    asked, other = read_contrasts()[::2], read_contrasts()[1::2]

    assert [item.context for item in asked] == [item.context for item in other]
    assert len({item.context for item in asked}) == 20
    assert all(item.answers[0] in item.context for item in asked)
    assert not any(item.answers for item in other)


class Oracle:
    """Client of a server whose models find every answer in brackets, and rank the shortest text first."""

    def answer(self, questions, **_):
        found = [(text.index("[") + 1, text.index("]")) if "[" in text else (0, 1) for _, text in questions]
        return [
            Answer((Span(*place, text[slice(*place)], 0.8),), place != (0, 1), 0.2)
            for place, (_, text) in zip(found, questions, strict=True)
        ]

    def rerank(self, inputs, **_):
        orders = [sorted(range(len(texts)), key=lambda n: len(texts[n])) for _, texts in inputs]
        return [Ranking(tuple(RankedDocument(n, 1 / len(order)) for n in order)) for order in orders]


def test_answering_scores():
    """The best span counts where the answer is known, and the choice of "no answer" where it may be missing."""
    known = SpanExample("who?", "it was [Ana]", ("Ana",))
    lost = SpanExample("who?", "x is all", ("x",))
    mixed = [known, lost, SpanExample("who?", "nobody")]

    found = answering_scores(Oracle(), "answer", [known, lost], mixed)

    assert found["best span"]["f1"] == 1
    assert found["contrast"] == {"correct": 20, "of": 40}  # no text has brackets
    assert [each["count"] for each in found["reliability"]["bins"]] == [2, 1]
    assert [each["right"] for each in found["reliability"]["bins"]] == [0.5, 1]


def test_reliability_of_known_probabilities():
    """Scores that are probabilities have nearly no error, and scores that are too high have what they are too high."""
    rng = np.random.default_rng(0)
    scores = rng.random(100_000)
    is_right = (rng.random(100_000) < scores).astype(float)

    assert reliability(scores, is_right)["error"] < 0.01
    assert reliability(scores / 2 + 0.5, is_right)["error"] == pytest.approx(0.25, abs=0.01)
    assert len(reliability(np.array([0.0, 1.0]), np.array([0.0, 1.0]))["bins"]) == 2


def test_ranking_scores():
    """The mean reciprocal rank is that of the text with the answer."""
    texts = ["the owl sleeps in the tower", "the owl", "a long text about nothing at all, for a while"]
    paragraphs = [
        {"context": text, "qas": [{"question": f"which owl {n}?", "answers": [{"text": text[-5:]}]}]}
        for n, text in enumerate(texts)
    ]

    found = ranking_scores(Oracle(), "rerank", [("a", paragraph) for paragraph in paragraphs])

    assert found["mrr"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert found["num_questions"] == 3


def test_only_whole_names_count():
    """A name with another end or another type is wrong."""
    known = [{(0, 3, "PER"), (8, 16, "LOC")}, set()]
    found = [{(0, 3, "PER"), (8, 12, "LOC")}, {(1, 2, "ORG")}]

    assert exact_scores(known, found) == {
        "f1": pytest.approx(0.4),
        "precision": pytest.approx(1 / 3),
        "recall": pytest.approx(0.5),
    }
