"""Tests of the distillation of tasks: a student learns from a teacher alone, with labels, and from several."""

import json
import re
import shutil
from dataclasses import fields, replace

import pytest

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


def write_numbers(path, count, seed):
    """Write texts whose number is 3 for a cat and 1 for a dog."""
    write_classification(path, count, seed)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row | {"label": 3.0 if row["label"] == "yes" else 1.0}) + "\n" for row in rows))
    return path


def write_choices(path, count, seed):
    """Write questions whose answer is the choice with a cat."""
    write_classification(path, count, seed)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    lines = []
    for number, row in enumerate(rows):
        choices = [row["text"].replace("dog", "cat"), row["text"].replace("cat", "dog"), "the big house"]
        order = [number % 3, (number + 1) % 3, (number + 2) % 3]
        lines.append(json.dumps({"choices": [choices[item] for item in order], "label": order.index(0)}) + "\n")
    path.write_text("".join(lines))
    return path


def write_tags(path, count, seed):
    """Write sentences in which cats are animals."""
    write_classification(path, count, seed)
    rows = [json.loads(line)["text"].split() for line in path.read_text().splitlines()]
    tagged = [{"tokens": row, "tags": ["B-CAT" if word == "cat" else "O" for word in row]} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in tagged))
    return path


WRITE = {
    "classification": write_classification,
    "multi-label": write_multi_label,
    "spans": lambda path, count, seed: write_spans(path.with_suffix(".json"), count, seed, unanswerable=True),
    "regression": write_numbers,
    "multiple-choice": write_choices,
    "tagging": write_tags,
}
METRIC = {"multi-label": "micro_f1", "spans": "f1", "regression": "pearson", "tagging": "f1"}
"""Metrics other than accuracy."""


def task_of(name):
    return "classification" if name == "multi-label" else name


@pytest.fixture(scope="module")
def taught(checkpoint, tmp_path_factory, alone):
    """Return a function from a task to its teacher, fine-tuned on toy data, its training data and dev data."""
    found = {}

    def make(name):
        if name not in found:
            folder = tmp_path_factory.mktemp(name)
            train = WRITE[name](folder / "train.jsonl", 400, 0)
            dev = WRITE[name](folder / "dev.jsonl", 80, 1)
            recipe = FinetuneRecipe(
                task=task_of(name),
                checkpoint=checkpoint,
                train=(train,),
                dev=(dev,),
                run_dir=folder / "teacher",
                num_epochs=8 if name in ("spans", "multi-label") else 5,
                max_seq_length=48,
                max_query_length=16 if name == "spans" else 64,
                **LEARN,
            )
            found[name] = finetune(recipe, alone), train, dev
        return found[name]

    return make


@pytest.fixture
def recipe_of(checkpoint, taught, tmp_path):
    """Return a function from a task to a recipe without labels."""

    def make(name, **changes):
        teacher, _, dev = taught(name)
        unlabelled = WRITE[name](tmp_path / "more.jsonl", 400, 2)
        values = {
            "task": task_of(name),
            "checkpoint": checkpoint,
            "teacher": (teacher,),
            "unlabelled": (unlabelled,),
            "dev": (dev,),
            "run_dir": tmp_path / "run",
            "num_epochs": 8 if name in ("spans", "multi-label") else 5,
            "max_seq_length": 48,
            "max_query_length": 16 if name == "spans" else 64,
            "temperature": 1.0,
        }
        return TaskDistillRecipe(**{**values, **LEARN, **changes})

    return make


@pytest.mark.parametrize("name", WRITE)
def test_a_student_learns_without_labels(name, recipe_of, taught, alone):
    """A student that saw only texts and its teacher is nearly as good on dev as the teacher."""
    recipe = recipe_of(name)
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

    assert read_task_card(distil_task(replace(recipe, num_epochs=1), alone)) is not None


@pytest.mark.parametrize("name", ["classification", "spans"])
def test_labels_and_more_texts(name, recipe_of, taught, alone):
    """With labels, both losses are trained and logged, on all examples; the contrast is the same student without."""
    train = taught(name)[1]
    recipe = recipe_of(name, train=(train,), alpha=0.5, num_epochs=1)
    path = distil_task(recipe, alone)

    card, lines = read_task_card(path), [line for line in read_metrics(recipe.run_dir) if "loss" in line]
    assert len(lines) >= 800 / 16 // 10  # long texts are several sequences
    for line in lines:
        assert line["loss"] == pytest.approx(0.5 * line["label_loss"] + 0.5 * line["teacher_loss"], rel=1e-5)
    rows = [row for row, values in card.scores.items() if isinstance(values, dict)]
    contrast = read_task_card(recipe.run_dir / "fine-tuned" / "checkpoint")
    assert rows[:-1] == ["dev", "teacher, teacher", "fine-tuned"]  # the last is a baseline
    assert card.scores["fine-tuned"] == contrast.scores["dev"]
    assert contrast.settings == card.settings
    assert [list(item) for item in card.provenance["teachers"]] == [["name", "sha256", "licence"]]


def test_labels_alone_are_the_contrast(recipe_of, taught, alone):
    """With alpha 1 a student learns the labels alone, so its losses are those of the contrast."""
    train = taught("classification")[1]
    recipe = recipe_of("classification", train=(train,), unlabelled=(), alpha=1.0, num_epochs=1, log_every=1)
    path = distil_task(recipe, alone)

    losses = [
        [line["loss"] for line in read_metrics(run) if "loss" in line]
        for run in (path.parent, path.parent / "fine-tuned")
    ]
    assert losses[0] == losses[1]


def test_interrupted_run_resumes_bit_for_bit(recipe_of, tmp_path, alone, monkeypatch):
    """Outputs are not computed again, and the losses are those of an undisturbed run."""
    recipe = recipe_of("classification", num_epochs=1, log_every=1, checkpoint_every=4)
    whole = distil_task(recipe, alone)
    broken = replace(recipe, run_dir=tmp_path / "broken")
    with interrupted_at(11):
        distil_task(broken, alone)
    monkeypatch.setattr("training.distillation.teachers.Teacher.run", None)
    resumed = distil_task(broken, alone)

    losses = [[line.get("loss") for line in read_metrics(path.parent)] for path in (whole, resumed)]
    assert losses[0] == losses[1]


def test_labels_in_another_order_are_the_same_labels(recipe_of, taught, tmp_path, alone):
    """A teacher whose labels have another order teaches each label under its name."""
    teacher, _, _ = taught("classification")
    other = shutil.copytree(teacher, tmp_path / "other")
    for name in ("task.json", "config.json"):
        text = (other / name).read_text()
        (other / name).write_text(text.replace('"yes"', '"YES"').replace('"no"', '"yes"').replace('"YES"', '"no"'))
    recipe = recipe_of("classification", teacher=(other,), train=(taught("classification")[1],), contrast=False)
    card = read_task_card(distil_task(replace(recipe, alpha=0.0), alone))

    assert card.settings.labels == ("no", "yes")
    assert card.scores["teacher, other"]["accuracy"] < 0.2
    assert card.scores["dev"]["accuracy"] < 0.2


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("classification", {"unlabelled": ()}, "give --train, --unlabelled or both"),
        ("classification", {"alpha": 1.5}, "--alpha must be at most 1: `1.5`"),
        ("classification", {"temperature": 0.0}, "--temperature must be above 0"),
        ("classification", {"task": "tagging"}, "was trained for `classification`, not for `tagging`"),
    ],
)
def test_mistakes_are_errors_before_training(name, changes, message, recipe_of, alone):
    """The error names the mistake, and no run is begun."""
    recipe = recipe_of(name)
    with pytest.raises(ValueError, match=re.escape(message)):
        distil_task(replace(recipe, **changes), alone)

    assert not recipe.run_dir.exists()


def test_teachers_that_do_not_fit(recipe_of, taught, tmp_path, alone, checkpoint):
    """Other labels, another problem type, and a checkpoint without a task are refused by name."""
    (other := tmp_path / "other.jsonl").write_text(
        '{"text": "a cat", "label": "yes"}\n{"text": "a", "label": "maybe"}\n'
    )
    recipe = recipe_of("classification", contrast=False)
    for changes, message in (
        ({"train": (other,), "dev": ()}, r"have other labels: the teacher lacks `maybe`"),
        ({"teacher": (taught("multi-label")[0],), "train": (taught("classification")[1],)}, "have other labels"),
        ({"teacher": (checkpoint,)}, "was trained for `masked-lm`, not for `classification`"),
        ({"unlabelled": (tmp_path / "none.txt",)}, "no such file|cannot use|none.txt"),
    ):
        with pytest.raises((ValueError, OSError), match=message):
            distil_task(replace(recipe, **changes), alone)
    assert not recipe.run_dir.exists()


def test_a_teacher_of_somebody_else(recipe_of, taught, tmp_path, alone):
    """A checkpoint without a task card teaches as the same one with it: labels come from its config."""
    teacher, _, _ = taught("classification")
    other = shutil.copytree(teacher, tmp_path / "other")
    (other / "task.json").unlink()
    losses = []
    for number, path in enumerate((teacher, other)):
        recipe = recipe_of("classification", teacher=(path,), num_epochs=1, run_dir=tmp_path / str(number))
        losses.append([line["loss"] for line in read_metrics(distil_task(recipe, alone).parent) if "loss" in line])

    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_grid_of_students(recipe_of, taught, tmp_path, alone):
    """Each run of a grid with a teacher is a distillation; the outputs are computed once, and nothing is repeated."""
    recipe = recipe_of("classification", train=(taught("classification")[1],), num_epochs=1)
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


def test_the_contrast_is_the_same_student(recipe_of, taught, alone, capsys):
    """With some layers only, the contrast has these layers, too; a student below its teacher is no failure."""
    train = taught("classification")[1]
    recipe = recipe_of("classification", train=(train,), unlabelled=(), take_layers=(1,), num_epochs=3)
    path = distil_task(recipe, alone)

    sizes = [read_shape(run).num_hidden_layers for run in (path, recipe.run_dir / "fine-tuned" / "checkpoint")]
    assert sizes == [1, 1]
    card = read_task_card(path)
    assert (card.scores["dev"]["accuracy"] > card.scores["majority label"]["accuracy"]) == (
        "is not above" not in capsys.readouterr().err
    )


def test_teachers_of_numbers_of_different_kinds(recipe_of, taught, tmp_path, alone):
    """Logits for a sigmoid and numbers are not averaged."""
    other = shutil.copytree(taught("regression")[0], tmp_path / "other")
    values = json.loads((other / "task.json").read_text())
    values["settings"]["activation"] = "sigmoid"
    (other / "task.json").write_text(json.dumps(values))
    recipe = recipe_of("regression")

    with pytest.raises(ValueError, match=r"different kinds \(identity, sigmoid\): leave out one kind"):
        distil_task(replace(recipe, teacher=(other, *recipe.teacher)), alone)


def test_thresholds_without_labels(recipe_of, alone):
    """Given thresholds are those of the student, and refused where there are none."""
    path = distil_task(recipe_of("multi-label", thresholds=(0.3,), num_epochs=0.5), alone)

    assert read_task_card(path).settings.thresholds == (0.3, 0.3, 0.3)
    for name, changes, message in (
        ("classification", {"thresholds": (0.3,)}, "--thresholds are for multi-label models"),
        ("spans", {"null_threshold": "auto", "dev": ()}, "--null-threshold auto needs"),
    ):
        with pytest.raises(ValueError, match=message):
            distil_task(recipe_of(name, run_dir=path.parent.parent / "new", **changes), alone)


def test_questions_without_answers(recipe_of, alone):
    """SQuAD's format needs no answers if there are no labels."""
    recipe = recipe_of("spans", num_epochs=0.2)
    content = json.loads(recipe.unlabelled[0].read_text())
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                del question["answers"]
    recipe.unlabelled[0].write_text(json.dumps(content))

    assert distil_task(recipe, alone).exists()


def test_pairs_and_single_texts_are_refused(recipe_of, tmp_path, alone):
    """Pairs in the training data and single texts without labels are not one task."""
    rows = [{"text": "a cat", "text_pair": "the", "label": label} for label in ("yes", "no")]
    (train := tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match="has single texts, but the training data have pairs"):
        distil_task(recipe_of("classification", train=(train,), dev=()), alone)
