"""Multi-label classification: data, loss, thresholds, checkpoints."""

import json

import pytest

from tasks import create_task
from tasks.classification import MULTI_LABEL, ClassificationExample, ClassificationSettings
from tasks.text.tokenizer import Tokenizer
from tests.commands import call
from tests.toy import write_classification, write_multi_label
from training.checkpoint.task_card import read_task_card
from training.data.columns import Columns, dev_columns, existing_columns
from training.data.table_examples import read_classification
from training.evaluate import main as evaluate
from training.finetuning.recipe import FinetuneRecipe
from training.finetuning.run import finetune
from training.loop.run_directory import read_metrics
from training.objectives.labelled import read_examples
from training.objectives.registry import OBJECTIVES

LEARN = {"learning_rate": 2e-3, "global_batch_size": 8, "micro_batch_size": 8, "dtype": "fp32", "dropout": 0.0}
LABELS = ("a big", "a cat", "a river")
FORMS = {
    "a list": ("a.jsonl", '{"text": "x", "label": ["b", "a"]}\n{"text": "y", "label": []}\n', {}),
    "a separator": ("a.tsv", "text\tlabel\nx\tb| a\ny\t\n", {"label_separator": "|"}),
    "a separator in JSON": (
        "a.jsonl",
        '{"text": "x", "label": "b|a"}\n{"text": "y", "label": ""}\n',
        {"label_separator": "|"},
    ),
    "columns": ("a.csv", "text,b,a\nx,1,1.0\ny,0,0\n", {"label_columns": ("b", "a")}),
    "columns of truth values": (
        "a.jsonl",
        '{"text": "x", "b": true, "a": 1}\n{"text": "y", "b": false, "a": 0.0}\n',
        {"label_columns": ("b", "a")},
    ),
}


def read(tmp_path, name, content, columns):
    path = tmp_path / name
    path.write_text(content)
    return read_examples("classification", [path], columns=Columns(**columns), tokenizer=None)


@pytest.mark.parametrize(("name", "content", "columns"), FORMS.values(), ids=FORMS)
def test_every_form_gives_the_same_labels(tmp_path, name, content, columns):
    """Lists, texts with a separator, and columns of 0 and 1 hold the same labels, or none."""
    assert read(tmp_path, name, content, columns) == [
        ClassificationExample("x", labels=("b", "a")),
        ClassificationExample("y", labels=()),
    ]


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        (
            "a.jsonl",
            '{"text": "x", "label": ["a"]}\n{"text": "x", "label": "a"}\n',
            {},
            "line 2: a single label, but .*1",
        ),
        ("a.jsonl", '{"text": "x", "label": ["a", "a"]}\n', {}, "line 1: one of the labels .* occurs twice: `a, a`"),
        ("a.tsv", "text\tlabel\nx\ta||b\n", {"label_separator": "|"}, "line 2: one of the labels is empty"),
        ("a.csv", "text,a,b\nx,1,2\n", {"label_columns": ("a", "b")}, "`b` is one of the label columns.*0 or 1: `2`"),
    ],
)
def test_odd_labels_are_refused(tmp_path, name, content, columns, message):
    """Errors name file, line and value."""
    with pytest.raises(ValueError, match=message):
        read(tmp_path, name, content, columns)


def test_columns_of_labels_are_remembered(tmp_path):
    """Separator and label columns of a recipe are used for other data that have the columns."""
    path = tmp_path / "dev.csv"
    path.write_text("text,a,b\nx,1,0\n")
    columns = Columns(label_columns=("a", "b"), label_separator="|")

    recorded = dev_columns({"columns": json.loads(json.dumps(vars(columns)))})

    assert recorded == existing_columns([path], recorded) == columns
    path.write_text("text,a\nx,1\n")
    assert existing_columns([path], recorded).label_columns == ()


@pytest.mark.parametrize(
    ("task", "columns", "message"),
    [
        ("regression", {"label_separator": "|"}, "are for classification, not `regression`"),
        ("classification", {"label_separator": "|", "label_columns": ("a",)}, "conflict; give one"),
    ],
)
def test_flags_that_do_nothing_are_refused(tokenizer_dir, tmp_path, task, columns, message):
    """Separator and label columns belong to classification, and conflict with each other."""
    (path := tmp_path / "a.csv").write_text("text,label,a\nx,1,1\n")

    with pytest.raises(ValueError, match=message):
        read_examples(task, [path], columns=Columns(**columns), tokenizer=Tokenizer.load(tokenizer_dir))


@pytest.fixture(scope="module")
def trained(checkpoint, tmp_path_factory, alone):
    """Return a fine-tuned checkpoint, and its dev data."""
    folder = tmp_path_factory.mktemp("multi")
    train, dev = (write_multi_label(folder / f"{seed}.jsonl", 200, seed) for seed in (0, 1))
    recipe = FinetuneRecipe(
        task="classification",
        checkpoint=checkpoint,
        train=(train,),
        dev=(dev,),
        run_dir=folder / "run",
        num_epochs=20,
        **LEARN,
    )
    return finetune(recipe, alone), dev


def test_labels_are_learned(trained):
    """F1 on dev is high, above a baseline; thresholds are chosen on dev, and stored."""
    card = read_task_card(trained[0])

    assert card.settings.labels == LABELS
    assert card.settings.problem_type == MULTI_LABEL
    assert len(card.settings.thresholds) == 3
    assert list(card.scores["dev"]) == ["micro_f1", "macro_f1", "exact_match"]
    assert card.scores["dev"]["micro_f1"] > 0.8 > card.scores["majority label"]["micro_f1"] > 0
    assert card.scores["dev"]["macro_f1"] >= card.scores["dev, thresholds 0.5"]["macro_f1"]


def test_the_curve_has_the_scores_of_the_result(trained):
    """Scores along the way are with thresholds chosen on dev, as the result's: the last one is that of the card."""
    curve = [line for line in read_metrics(trained[0].parent) if "eval_micro_f1" in line]

    card = read_task_card(trained[0])

    assert curve[-1]["eval_micro_f1"] == pytest.approx(card.scores["dev"]["micro_f1"], abs=1e-6)
    assert curve[-1]["eval_macro_f1"] == pytest.approx(card.scores["dev"]["macro_f1"], abs=1e-6)


@pytest.mark.parametrize(("given", "expected"), [((0.4,), (0.4, 0.4, 0.4)), ((0.1, 0.5, 0.9), (0.1, 0.5, 0.9))])
def test_thresholds_can_be_fixed(finetuning, tmp_path, alone, given, expected):
    """Given thresholds, one or one for each label, are those of curve and result; other data are refused."""
    train, dev = (write_multi_label(tmp_path / f"{seed}.jsonl", 40, seed) for seed in (0, 1))

    path = finetune(finetuning(train, dev, thresholds=given, num_epochs=2), alone)

    card = read_task_card(path)
    assert card.settings.thresholds == expected
    assert "dev, thresholds 0.5" not in card.scores
    single = write_classification(tmp_path / "single.jsonl", 40, 0)
    for data, thresholds, message in (
        (single, given, "--thresholds are for multi-label data"),
        (train, (0.5, 0.5), "need a threshold for each label: `2` thresholds, `3` labels"),
    ):
        with pytest.raises(ValueError, match=message):
            finetune(finetuning(data, thresholds=thresholds, run_dir=tmp_path / "refused"), alone)
    curve = [line["eval_micro_f1"] for line in read_metrics(path.parent) if "eval_micro_f1" in line]
    assert curve[-1] == pytest.approx(card.scores["dev"]["micro_f1"], abs=1e-6)


def test_evaluation_gives_the_scores_of_the_card(trained, tmp_path, monkeypatch, capfd):
    """`make evaluate` reads thresholds from the checkpoint, and writes sets of labels."""
    path, dev = trained
    predictions = tmp_path / "predictions.jsonl"

    arguments = [str(path), "--data", str(dev), "--train", str(dev), "--predictions", str(predictions)]
    result = call(evaluate, arguments, monkeypatch, capfd)

    score = read_task_card(path).scores["dev"]["micro_f1"]
    assert f"{100 * score:.2f}" in result.stdout
    rows = [json.loads(line) for line in predictions.read_text().splitlines()]
    assert {label for row in rows for label in row["labels"]} == {*LABELS}
    assert all(set(row["scores"]) == {*LABELS} for row in rows)


def test_data_of_the_other_kind_are_refused(finetuning, trained, tmp_path, alone):
    """A model of sets of labels is not scored on single labels; train and dev data have the same kind."""
    single, several = write_classification(tmp_path / "one.jsonl", 20, 0), trained[1]
    objective, settings = OBJECTIVES["classification"], read_task_card(trained[0]).settings

    assert "write lists, or give --columns.label-separator" in objective.mismatch(
        settings, read_classification(single, Columns())
    )
    with pytest.raises(ValueError, match=r"one\.jsonl`, line 1: "):
        finetune(finetuning(several, single), alone)
    with pytest.raises(ValueError, match=r"1\.jsonl`, line \d+: "):
        finetune(finetuning(single, several), alone)


def test_odd_labels_give_warnings(checkpoint):
    """Labels with few examples, labels that all texts have, and single labels in lists are named."""
    objective = OBJECTIVES["classification"]
    settings = ClassificationSettings(labels=("a", "b"), problem_type=MULTI_LABEL)
    task = create_task("classification", Tokenizer.load(checkpoint), settings)
    rows = [ClassificationExample("x", labels=("a",))] * 20

    assert objective.warnings(task, rows) == [
        "every text has exactly one label; as strings, not lists, their scores would sum to 1",
        "every text has the label `a` 20",
        "1 of 2 labels have fewer than 10 examples, too few for a threshold or a score: `b` 0",
    ]
    assert "look like several; if so, give --columns.label-separator '|'" in objective.label_warning(
        ["a", "b", "a|b", "b|a"]
    )
    assert not objective.label_warning(["a, b", "c", "d"])
