"""Questions that are changed until their text does not answer them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mini.unanswerable
from mini.data import ELSEWHERE
from mini.unanswerable import (
    CHANGES,
    REPEATS,
    Place,
    changed_question,
    negated,
    other_name,
    other_number,
    other_word,
    with_changed_questions,
    word_neighbours,
)
from tests.commands import call
from tests.toy import write_spans
from training.data.squad import read_spans

PARAGRAPH = "In 1810 Anna Weber moved north with Karl to Bremen, and in 1825 she had 12 ships."
NEIGHBOURS = {"north": ["south", "east"], "moved": ["ran"], "ships": ["north"]}


def place(seed=0, **changes):
    values = {"paragraph": PARAGRAPH, "article": f"{PARAGRAPH}\nOlaf Berg left in 1830.", "neighbours": NEIGHBOURS}
    return Place(**{**values, **changes}, rng=random.Random(seed))


def found(change, question, **changes):
    """Return what a change makes of a question with different random numbers."""
    return {change(question, place(seed, **changes)) for seed in range(200)}


@pytest.mark.parametrize(
    ("change", "question", "expected"),
    [
        (other_number, "Who moved in 1810?", {"Who moved in 1825?", "Who moved in 1830?"}),
        (other_number, "Who moved in May?", {None}),
        (other_number, "Who had 7 ships?", {None}),
        (
            other_name,
            "When did Anna Weber move?",
            {f"When did {name} move?" for name in ("Karl", "Bremen", "Olaf Berg")},
        ),
        (other_name, "When did she move?", {None}),
        (other_word, "Who moved north?", {"Who moved south?", "Who moved east?", "Who ran north?"}),
        (other_word, "Who had ships?", {None}),
        (other_word, "Who northed?", {None}),
        (negated, "Where did she move?", {"Where didn't she move?"}),
        (negated, "Who moved?", {None}),
    ],
)
def test_changes(change, question, expected):
    """A number has as many digits, a name is whole, and a word of the same kind is not in the paragraph."""
    assert found(change, question) == expected


@given(st.text(max_size=40), st.text(max_size=60), st.integers(0, 5))
def test_changed_questions_differ(question, paragraph, seed):
    """Whatever the texts hold, a change gives another question or none."""
    assert changed_question(question, place(seed, paragraph=paragraph, article=paragraph)) != question


def test_every_change_is_used():
    """A question that allows all changes gets each of them sometimes."""
    question = "Why did Anna Weber move north in 1810?"
    seen = {change.__name__: found(change, question) - {None} for change in CHANGES}
    made = found(changed_question, question)

    assert all(made & results for results in seen.values())
    assert made == set().union(*seen.values())


def test_other_questions_stay():
    """Answers stay as they are; people's unanswerable questions are repeated, those about another paragraph are not."""
    answers = [{"text": "Bremen", "answer_start": PARAGRAPH.index("Bremen")}]
    items = [
        {"id": "a", "question": "Where did Anna Weber move?", "answers": answers},
        {"id": "b", "question": "Why?", "answers": [], "is_impossible": True},
        {"id": f"c{ELSEWHERE}1", "question": "Who?", "answers": [], "is_impossible": True},
    ]
    made = list(with_changed_questions([("Anna", {"context": PARAGRAPH, "qas": items})], NEIGHBOURS))

    ((title, paragraph),) = made
    questions = {item["id"]: item for item in paragraph["qas"]}
    assert (title, paragraph["context"]) == ("Anna", PARAGRAPH)
    assert list(questions) == ["a", "a-changed", *(f"b-{number}" for number in range(REPEATS)), items[2]["id"]]
    assert questions["a"] == items[0]
    assert questions["a-changed"]["answers"] == []
    assert made == list(with_changed_questions([("Anna", {"context": PARAGRAPH, "qas": items})], NEIGHBOURS))


def test_neighbours_are_other_words(checkpoint):
    """Neighbours are words of the vocabulary, and no forms of the same word."""
    neighbours = word_neighbours(checkpoint)

    assert neighbours
    for word, others in neighbours.items():
        assert others
        assert not any(other.startswith(word[:4]) for other in others)


def test_command_writes_questions_that_training_reads(tmp_path, checkpoint, monkeypatch, capfd):
    """The file holds all questions and changed ones; a checkpoint without word embeddings is refused in one line."""
    write_spans(tmp_path / "questions.json", 30, 0)
    before = read_spans(tmp_path / "questions.json")
    arguments = [str(tmp_path / "questions.json"), str(checkpoint), str(tmp_path / "changed.json")]

    result = call(mini.unanswerable.main, arguments, monkeypatch, capfd)

    assert result.returncode == 0, result.stderr
    after = read_spans(tmp_path / "changed.json")
    assert [example for example in after if example.answers] == before
    made = len(after) - len(before)
    assert f"changed.json: {len(after)} questions, {made} of them without an answer" in result.stdout
    result = call(mini.unanswerable.main, [arguments[0], str(tmp_path), arguments[2]], monkeypatch, capfd)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
