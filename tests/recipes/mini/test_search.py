"""Data of the model that ranks: queries, texts that fit, and others."""

import json
import random

import numpy as np
import pytest

from recipes.mini.search import Query, Texts, candidates, read_texts, until, words_of

SENTENCES = ["The owl sleeps in the old oak.", "It hunts mice at night.", "The river is near the oak tree."]


@pytest.fixture
def data(tmp_path):
    """Return a folder as recipes.mini.data writes it."""

    def paragraph(number, title):
        answers = [{"text": f"Answer {number}", "answer_start": 0}]
        questions = [{"id": f"{title}{number}", "question": f"What is {number} of {title}?", "answers": answers}]
        return {"context": f"Answer {number} of {title}. It is here.", "qas": questions}

    articles = [{"title": title, "paragraphs": [paragraph(n, title) for n in range(4)]} for title in ("A", "B")]
    (tmp_path / "squad-v1.json").write_text(json.dumps({"data": articles}))
    lines = [" ".join([*SENTENCES, f"paragraphs {number}."]) for number in range(5)]
    (tmp_path / "paragraphs.txt").write_text("\n\n".join(lines) + "\n")
    return tmp_path


def test_queries_and_their_texts(data):
    """Each question comes with its paragraph and answers, each made-up query with a paragraph of Wikipedia."""
    found = read_texts(data, random.Random(0))

    assert len(found.texts) == len(found.articles) == 8 + 5
    questions, made = found.queries[:8], found.queries[8:]
    for query in questions:
        number, title = query.text.removeprefix("What is ").rstrip("?").split(" of ")
        assert found.texts[query.source].startswith(f"Answer {number} of {title}.")
        assert (found.articles[query.source], query.answers) == (title, (f"answer {number}",))
    words = {*" ".join(SENTENCES).lower().replace(".", "").split(), "paragraphs", *"01234"}
    for query in made:
        assert {*query.text.lower().replace(".", "").split()} <= words
        assert found.articles[query.source] == ""


def test_candidates():
    """The own text comes first with label 1; texts with an answer are never among the others."""
    texts = [f"{word} number {number}" for word in ("owl", "oak") for number in range(30)]
    queries = [Query("owl number 3", 3, ("owl number 4",)), Query("oak 7", 37)]
    found = Texts(texts, ["a"] * 30 + [""] * 30, queries)
    rng = np.random.default_rng(0)

    groups = list(candidates(found, rng.normal(size=(60, 4)), rng.normal(size=(2, 4)), random.Random(0)))

    for query, rows in zip(queries, groups, strict=True):
        assert [row["label"] for row in rows] == [1, *[0] * (len(rows) - 1)]
        assert rows[0] == {"text": query.text, "text_pair": texts[query.source], "label": 1}
        others = [row["text_pair"] for row in rows[1:]]
        assert len(others) >= 4
        assert len({*others, texts[query.source]}) == len(rows)
    assert "owl number 4" not in [row["text_pair"] for row in groups[0]]


def test_words_of_a_sentence():
    """Words keep their order, with or without case and the marks at the ends."""
    sentence = 'The "old oak" stands near the river, and the owls sleep there (mostly).'
    for seed in range(50):
        made = words_of(sentence, random.Random(seed)).lower()
        rest = iter(sentence.lower().split())
        assert all(any(word.strip(' ,;.()"') == w.strip(' ,;.()"') for w in rest) for word in made.split())
        assert 1 <= len(made.split()) <= 18


def test_until():
    """Whole groups are taken until there are enough rows."""
    assert [len(group) for group in until([[{}] * 3] * 5, 7)] == [3, 3, 3]
