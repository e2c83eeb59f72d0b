"""Tests of the distillation of tasks: a student learns from a teacher alone, with labels, and from several."""

import functools
import json
import re
import shutil
from dataclasses import fields, replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.toy import write_classification, write_multi_label, write_spans
from tests.training.interruption import interrupted_at
from training.checkpoint.evaluation import load_for_evaluation
from training.checkpoint.reader import read_shape
from training.checkpoint.task_card import read_task_card
from training.data.columns import Columns
from training.distillation.tasks import TaskDistillRecipe, distil_task
from training.finetuning.recipe import FinetuneRecipe
from training.finetuning.run import finetune
from training.grid import GridRecipe, grid
from training.loop.run_directory import read_metrics

LEARN = {"learning_rate": 3e-3, "global_batch_size": 16, "micro_batch_size": 16, "dtype": "fp32", "dropout": 0.0}


def writer(row_of):
    """Return a function that writes texts about a cat or a dog, each row changed by `row_of`."""

    def write(path, count, seed):
        lines = write_classification(path, count, seed).read_text().splitlines()
        rows = [row_of(number, json.loads(line)) for number, line in enumerate(lines)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


def number_of(number, row):
    return row | {"label": 3.0 if row["label"] == "yes" else 1.0}


def choices_of(number, row):
    """Return a question whose answer is the choice with a cat."""
    choices = [row["text"].replace("dog", "cat"), row["text"].replace("cat", "dog"), "the big house"]
    order = [number % 3, (number + 1) % 3, (number + 2) % 3]
    return {"choices": [choices[item] for item in order], "label": order.index(0)}


def tags_of(number, row):
    """Return a sentence in which cats are animals."""
    words = row["text"].split()
    return {"tokens": words, "tags": ["B-CAT" if word == "cat" else "O" for word in words]}


WRITE = {
    "classification": write_classification,
    "multi-label": write_multi_label,
    "spans": lambda path, count, seed: write_spans(path.with_suffix(".json"), count, seed, unanswerable=True),
    "regression": writer(number_of),
    "multiple-choice": writer(choices_of),
    "tagging": writer(tags_of),
}
NUM_TEXTS = {"spans": 160, "multi-label": 400, "multiple-choice": 120, "tagging": 120}
"""Texts from which a task is learnt; 200 for others."""
METRIC = {"multi-label": "micro_f1", "spans": "f1", "regression": "pearson", "tagging": "f1"}
"""Metrics other than accuracy."""


def settings_of(name):
    """Return the fields of a recipe that teacher and student share."""
    is_hard = name in ("spans", "multi-label")
    return LEARN | {
        "task": "classification" if name == "multi-label" else name,
        "num_epochs": 8 if is_hard else 5,
        "max_seq_length": 48,
        "max_query_length": 16 if name == "spans" else 64,
        "eval_examples": 8,
    }


@pytest.fixture(scope="module")
def taught(checkpoint, tmp_path_factory, alone):
    """Return a function from a task to its teacher, fine-tuned on toy data, and its dev data."""

    @functools.cache
    def make(name):
        folder = tmp_path_factory.mktemp(name)
        files = {
            "train": (WRITE[name](folder / "train.jsonl", NUM_TEXTS.get(name, 200), 0),),
            "dev": (WRITE[name](folder / "dev.jsonl", 80, 1),),
        }
        recipe = FinetuneRecipe(checkpoint=checkpoint, run_dir=folder / "teacher", **files, **settings_of(name))
        return finetune(recipe, alone), recipe.dev[0]

    return make


@pytest.fixture
def recipe_of(checkpoint, taught, tmp_path):
    """Return a function from a task to a recipe of a student, by default without labels."""

    def make(name, *, texts=32, labelled=0, **changes):
        teacher, dev = taught(name)
        values = {
            "checkpoint": checkpoint,
            "teacher": (teacher,),
            "unlabelled": (WRITE[name](tmp_path / "more.jsonl", texts, 2),) if texts else (),
            "train": (WRITE[name](tmp_path / "train.jsonl", labelled, 0),) if labelled else (),
            "dev": (dev,),
            "run_dir": tmp_path / "run",
            "temperature": 1.0,
            "log_every": 1,
        }
        return TaskDistillRecipe(**{**values, **settings_of(name), "num_epochs": 1, **changes})

    return make


def losses_of(run, name="loss"):
    return [line[name] for line in read_metrics(run) if name in line]


@pytest.mark.parametrize("name", WRITE)
def test_a_student_learns_without_labels(name, recipe_of, taught, alone):
    """A student that saw only texts and its teacher is nearly as good on dev as the teacher."""
    recipe = recipe_of(name, texts=NUM_TEXTS.get(name, 200), num_epochs=settings_of(name)["num_epochs"])
    if name == "tagging":  # running text
        rows = [json.loads(line)["tokens"] for line in recipe.unlabelled[0].read_text().splitlines()]
        (path := recipe.run_dir.parent / "texts.txt").write_text("".join(" ".join(row) + "\n" for row in rows))
        recipe = replace(recipe, unlabelled=(path,))
    assert recipe.alpha == 0

    path = distil_task(recipe, alone)

    card, theirs = read_task_card(path), read_task_card(taught(name)[0])
    metric = METRIC.get(name, "accuracy")
    scores = {row: values[metric] for row, values in card.scores.items() if isinstance(values, dict)}
    assert scores["teacher, teacher"] == pytest.approx(theirs.scores["dev"][metric], abs=1e-6)
    assert scores["teacher, teacher"] > 0.8
    assert scores["dev"] > scores["teacher, teacher"] - 0.15
    assert getattr(card.settings, "labels", ()) == getattr(theirs.settings, "labels", ())
    assert load_for_evaluation(path)[0].settings == card.settings


@pytest.mark.parametrize("name", ["classification", "regression", "multiple-choice"])
def test_unlabelled_tables_need_no_column_of_labels(name, recipe_of, tmp_path, alone):
    """A table without labels is read although the flags name the column of the labels."""

    def renamed(source, label):
        rows = [json.loads(line) for line in source.read_text().splitlines()[:40]]
        rows = [{key: value for key, value in row.items() if key != "label"} | label(row) for row in rows]
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    recipe = recipe_of(name, columns=Columns(label="gold"), contrast=False)
    train, dev = (renamed(path, lambda row: {"gold": row["label"]}) for path in (*recipe.unlabelled, *recipe.dev))
    recipe = replace(recipe, train=(train,), dev=(dev,), unlabelled=(renamed(recipe.unlabelled[0], lambda row: {}),))

    assert read_task_card(distil_task(recipe, alone)) is not None


@pytest.mark.parametrize("name", ["classification", "spans"])
def test_labels_and_more_texts(name, recipe_of, alone, capsys):
    """Both losses are trained and logged, on all examples; the contrast is the same student, without the teacher."""
    recipe = recipe_of(name, labelled=32, alpha=0.5, take_layers=(1,))
    path = distil_task(recipe, alone)

    card, lines = read_task_card(path), [line for line in read_metrics(recipe.run_dir) if "loss" in line]
    assert len(lines) >= 64 // 16  # long texts are several sequences
    for line in lines:
        assert line["loss"] == pytest.approx(0.5 * line["label_loss"] + 0.5 * line["teacher_loss"], rel=1e-5)
    rows = {row: values for row, values in card.scores.items() if isinstance(values, dict)}
    contrast = read_task_card(recipe.run_dir / "fine-tuned" / "checkpoint")
    assert [*rows][:-1] == ["dev", "teacher, teacher", "fine-tuned"]
    assert rows["fine-tuned"] == contrast.scores["dev"]
    assert contrast.settings == card.settings
    assert [list(item) for item in card.provenance["teachers"]] == [["name", "sha256", "licence"]]
    sizes = [read_shape(run).num_hidden_layers for run in (path, recipe.run_dir / "fine-tuned" / "checkpoint")]
    assert sizes == [1, 1]
    metric, baseline = next(iter(rows["dev"])), [*rows.values()][-1]  # a student below its teacher is no failure
    warnings = capsys.readouterr().err.count("is not above")
    assert warnings == sum(row[metric] <= baseline[metric] for row in (rows["dev"], rows["fine-tuned"]))


def test_labels_alone_are_the_contrast(recipe_of, alone):
    """With alpha 1 a student learns the labels alone, so its losses are those of the contrast."""
    path = distil_task(recipe_of("classification", texts=0, labelled=48, alpha=1.0), alone)

    assert losses_of(path.parent) == losses_of(path.parent / "fine-tuned")


def test_interrupted_run_resumes_bit_for_bit(recipe_of, tmp_path, alone, monkeypatch):
    """Outputs are not computed again, and the losses are those of an undisturbed run."""
    recipe = recipe_of("classification", texts=96, checkpoint_every=2)
    whole = distil_task(recipe, alone)
    broken = replace(recipe, run_dir=tmp_path / "broken")
    with interrupted_at(5):
        distil_task(broken, alone)
    monkeypatch.setattr("training.distillation.teachers.Teacher.run", None)
    resumed = distil_task(broken, alone)

    losses = [[line.get("loss") for line in read_metrics(path.parent)] for path in (whole, resumed)]
    assert losses[0] == losses[1]


def reorder(teacher):
    """Give the labels of a teacher another order, with their weights."""
    for name in ("task.json", "config.json"):
        text = (teacher / name).read_text()
        (teacher / name).write_text(text.replace('"yes"', '"YES"').replace('"no"', '"yes"').replace('"YES"', '"no"'))
    weights = load_file(path := teacher / "model.safetensors")
    changed = {name: value.flip(0).contiguous() for name, value in weights.items() if name.startswith("classifier.")}
    save_file(weights | changed, path, metadata={"format": "pt"})


@pytest.mark.parametrize("change", [reorder, lambda teacher: (teacher / "task.json").unlink()], ids=["order", "card"])
def test_teachers_of_the_same_outputs(change, recipe_of, taught, tmp_path, alone):
    """Labels in another order are the same labels, and without a task card they come from the config."""
    change(other := shutil.copytree(taught("classification")[0], tmp_path / "other"))
    losses = []
    for number, path in enumerate((taught("classification")[0], other)):
        recipe = recipe_of(
            "classification", labelled=32, teacher=(path,), contrast=False, run_dir=tmp_path / str(number)
        )
        losses.append(losses_of(distil_task(recipe, alone).parent, "teacher_loss"))

    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unlabelled": ()}, "give --train, --unlabelled or both"),
        ({"task": "tagging"}, "was trained for `classification`, not for `tagging`"),
        ({"thresholds": (0.3,)}, "--thresholds are for multi-label models"),
        ({"train": (Path("other.jsonl"),), "dev": ()}, "have other labels: the teacher lacks `maybe`"),
        ({"train": (Path("pairs.jsonl"),), "dev": ()}, "has single texts, but the training data have pairs"),
        ({"unlabelled": (Path("none.txt"),)}, "no such file: `none.txt`"),
    ],
)
def test_mistakes_are_errors_before_training(changes, message, recipe_of, tmp_path, alone, monkeypatch):
    """The error names the mistake, and no run is begun."""
    monkeypatch.chdir(tmp_path)
    Path("other.jsonl").write_text('{"text": "a cat", "label": "yes"}\n{"text": "a", "label": "maybe"}\n')
    rows = [{"text": "a cat", "text_pair": "the", "label": label} for label in ("yes", "no")]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = recipe_of("classification", contrast=False)

    with pytest.raises(ValueError, match=re.escape(message)):
        distil_task(replace(recipe, **changes), alone)
    assert not recipe.run_dir.exists()


def test_teachers_that_do_not_fit(recipe_of, taught, tmp_path, alone, checkpoint):
    """Another problem type or kind of number, and a checkpoint of another task, are refused by name."""
    other = shutil.copytree(taught("regression")[0], tmp_path / "other")
    values = json.loads((other / "task.json").read_text())
    values["settings"]["activation"] = "sigmoid"
    (other / "task.json").write_text(json.dumps(values))
    labelled = recipe_of("classification", labelled=16)
    for recipe, teachers, message in (
        (labelled, [taught("multi-label")[0]], "have other labels"),
        (labelled, [checkpoint], "was trained for `masked-lm`, not for `classification`"),
        (
            recipe_of("regression"),
            [other, taught("regression")[0]],
            r"different kinds \(identity, sigmoid\): leave out",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            distil_task(replace(recipe, teacher=tuple(teachers)), alone)
    assert not labelled.run_dir.exists()


def test_a_grid_of_students(recipe_of, tmp_path, alone):
    """Each run of a grid with a teacher is a distillation; the outputs are computed once, and nothing is repeated."""
    recipe = recipe_of("classification", labelled=32)
    names = {item.name for item in fields(recipe)} - {"learning_rate", "num_epochs", "global_batch_size", "contrast"}
    values = {name: getattr(recipe, name) for name in names} | {"run_dir": tmp_path / "grid", "from_scratch": False}
    cells = GridRecipe(**values, learning_rates=(3e-3, 1e-3), batch_sizes=(16,), epochs=(1.0,), seeds=(0,))
    found = grid(cells, alone)

    assert found.num_runs == 2
    assert len([path for path in (tmp_path / "grid" / "teacher-outputs").iterdir() if path.is_dir()]) == 1
    card = read_task_card(tmp_path / "grid" / "checkpoint")
    assert "teacher, teacher" in card.scores
    assert grid(cells, alone).best == found.best
    with pytest.raises(ValueError, match=r"--alpha `0.5` has no effect here: it needs --teacher"):
        replace(cells, teacher=(), unlabelled=(), temperature=2.0, alpha=0.5)


def test_given_thresholds_without_labels(recipe_of, alone):
    """Given thresholds are those of the student."""
    path = distil_task(recipe_of("multi-label", thresholds=(0.3,)), alone)

    assert read_task_card(path).settings.thresholds == (0.3, 0.3, 0.3)


def test_questions_without_answers(recipe_of, alone):
    """SQuAD's format needs no answers if there are no labels; a null threshold from dev data needs these."""
    recipe = recipe_of("spans")
    content = json.loads(recipe.unlabelled[0].read_text())
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                del question["answers"]
    recipe.unlabelled[0].write_text(json.dumps(content))

    assert distil_task(recipe, alone).exists()
    with pytest.raises(ValueError, match="--null-threshold auto needs"):
        distil_task(replace(recipe, null_threshold="auto", dev=()), alone)
