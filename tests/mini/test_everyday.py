"""Tests of the self-written texts and their scores."""

from collections import Counter

import pytest

from mini.everyday import parse_marks, read_names, read_sentiment
from mini.everyday.names import exact_scores


def test_marks():
    """Offsets are those of the text without marks."""
    marked = parse_marks("[PER Ana] saw [LOC New York].")

    assert marked.text == "Ana saw New York."
    assert {(marked.text[start:end], kind) for start, end, kind in marked.names} == {
        ("Ana", "PER"),
        ("New York", "LOC"),
    }


def test_texts_are_whole():
    """There are 60 sentences with 150 names of three types, and 40 sentences, half of them positive."""
    sentences, examples = read_names(), read_sentiment()
    kinds = Counter(kind for sentence in sentences for *_, kind in sentence.names)

    assert (len(sentences), kinds.total()) == (60, 150)
    assert set(kinds) == {"PER", "LOC", "ORG"}
    assert not any(mark in sentence.text for sentence in sentences for mark in "[]")
    assert Counter(example.label for example in examples) == {"positive": 20, "negative": 20}
    assert len({example.text for example in examples}) == 40


def test_only_whole_names_count():
    """A name with another end or another type is wrong."""
    known = [frozenset({(0, 3, "PER"), (8, 16, "LOC")}), frozenset()]
    found = [{(0, 3, "PER"), (8, 12, "LOC")}, {(1, 2, "ORG")}]

    assert exact_scores(known, found) == {
        "f1": pytest.approx(0.4),
        "precision": pytest.approx(1 / 3),
        "recall": pytest.approx(0.5),
    }
