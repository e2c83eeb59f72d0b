"""Tests of recorded answers as a teacher: they teach what the model that gave them does."""

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.batching import predict
from tests.training.distillation.test_tasks import recipe_of, taught  # noqa: F401  (fixtures)
from training.data.columns import Columns
from training.distillation.recorded_answers import read_recorded_answers
from training.distillation.tasks import distil_task
from training.evaluate import load_for_evaluation
from training.loop.run_directory import read_metrics
from training.objectives.registry import OBJECTIVES
from training.task_card import read_task_card

NAMES = ["classification", "multi-label", "regression", "multiple-choice", "spans"]


def rows_of(task, examples, predictions):
    """Yield the columns that the client's batch jobs write."""
    for example, found in zip(examples, predictions, strict=True):
        if task.name == "classification":
            selected = {"selected": [name for name, *_ in found.selected]} if found.reached is not None else {}
            labels = [{"label": name, "score": score} for name, score in found.ranked()]
            yield {"text": example.text, "labels": labels, **selected}
        elif task.name == "regression":
            yield {"text": example.text, "value": found}
        elif task.name == "multiple-choice":
            yield {"question": example.question, "choices": list(example.choices), "scores": found.scores.tolist()}
        else:
            spans = [{"start": item.start, "end": item.end, "score": item.score} for item in found.spans]
            no_answer = {"no_answer_score": found.no_answer_score, "spans": spans}
            yield {"question": example.question, "context": example.context, **no_answer}


@pytest.fixture
def recorded(recipe_of, taught, tmp_path):  # noqa: F811
    """Return a function from a task to its recipe and a Parquet with the teacher's answers to its data."""

    def make(name):
        recipe = recipe_of(name)
        task, run = load_for_evaluation(taught(name)[0])
        examples = OBJECTIVES[task.name].read_unlabelled(recipe.unlabelled[0], Columns())
        table = pa.Table.from_pylist(list(rows_of(task, examples, predict(task, examples, run))))
        pq.write_table(table, tmp_path / "answers.parquet")
        return replace(recipe, teacher=(), recorded=(tmp_path / "answers.parquet",), run_dir=tmp_path / "recorded")

    return make


def losses_of(checkpoint):
    """Return the losses of the run of a checkpoint."""
    return [line["loss"] for line in read_metrics(checkpoint.parent) if "loss" in line]


@pytest.mark.parametrize("name", NAMES)
def test_answers_teach_as_their_model(name, recorded, recipe_of, alone):  # noqa: F811
    """Recorded probabilities give the losses of the model that recorded them."""
    recipe = replace(recorded(name), unlabelled=(), num_epochs=1)
    path = distil_task(recipe, alone)

    assert read_task_card(path).provenance["teachers"][0]["name"] == "answers.parquet"
    losses = losses_of(path)
    assert losses[-1] < losses[0]
    if name != "spans":  # whose candidates are the best spans only
        with_teacher = distil_task(recipe_of(name, run_dir=recipe.run_dir.parent / "again", num_epochs=1), alone)
        assert losses == pytest.approx(losses_of(with_teacher), rel=1e-3, abs=1e-5)


@pytest.mark.slow
def test_recorded_spans_teach(recorded, taught, alone):  # noqa: F811
    """The best spans alone make a student that is nearly as good as their model."""
    path = distil_task(replace(recorded("spans"), unlabelled=()), alone)

    scores, theirs = read_task_card(path).scores, read_task_card(taught("spans")[0]).scores
    assert scores["dev"]["f1"] > theirs["dev"]["f1"] - 0.15


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("classification", lambda rows: [row | {"labels": row["labels"][:1]} for row in rows], "no score of label `"),
        (
            "classification",
            lambda rows: [{"text": row["text"]} for row in rows],
            "needs columns `text`",
        ),
        ("regression", lambda rows: [row | {"value": None} for row in rows], "row 1: `value` is empty"),
        (
            "regression",
            lambda rows: [row | {"value": np.nan} for row in rows],
            "row 1: the answer is NaN or infinite",
        ),
        ("multiple-choice", lambda rows: rows[:0], "no rows in"),
    ],
)
def test_answers_that_do_not_fit(name, change, message, recorded, alone):
    """The error names file and row, and nothing is trained."""
    recipe = recorded(name)
    rows = change(pq.read_table(recipe.recorded[0]).to_pylist())
    table = pa.Table.from_pylist(rows) if rows else pq.read_table(recipe.recorded[0]).slice(0, 0)
    pq.write_table(table, recipe.recorded[0])

    with pytest.raises(ValueError, match=re.escape(message)):
        distil_task(recipe, alone)


def test_other_examples_than_recorded(recorded, alone):
    """Examples without an answer are counted, and the first is named."""
    recipe = recorded("classification")
    table = pq.read_table(recipe.recorded[0])
    texts = table["text"].to_pylist()
    pq.write_table(table.filter(pa.array([text != texts[0] for text in texts])), recipe.recorded[0])

    with pytest.raises(ValueError, match=r"of 400 training examples have no answer in .* the first: `.*`, line 1;"):
        distil_task(recipe, alone)


def test_tags_cannot_be_recorded(tmp_path):
    """Answers of `bertline tag` have one probability a word."""
    with pytest.raises(ValueError, match="holds no probabilities of all tags, which `tagging` needs; give --teacher"):
        read_recorded_answers("tagging", (tmp_path,), Columns())
