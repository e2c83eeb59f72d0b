"""Options of fine-tuning in whole runs: class weights, label smoothing, early stopping, scores by class."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.commands import call
from tests.toy import write_classification
from training.checkpoint.task_card import read_task_card
from training.distillation.tasks import TaskDistillRecipe
from training.evaluate import main as evaluate
from training.finetuning.run import finetune
from training.loop.run_directory import read_metrics
from training.report import render


@pytest.fixture
def unbalanced(tmp_path):
    """Return training data with a `no` for every five `yes`, and dev data."""
    train, dev = (write_classification(tmp_path / f"{seed}.jsonl", 120, seed) for seed in (0, 1))
    rows = train.read_text().splitlines()
    kept = [row for number, row in enumerate(rows) if "yes" in row or number % 5 == 0]
    train.write_text("\n".join(kept) + "\n")
    return train, dev


def test_scores_by_class_are_printed_and_kept(finetuning, unbalanced, tmp_path, alone, monkeypatch, capfd):
    """Training, evaluation, task card and report show precision, recall, F1 and support of each label."""
    recipe = finetuning(*unbalanced, num_epochs=3, class_weights="balanced", label_smoothing=0.1, eval_every=4)

    path = finetune(recipe, alone)

    printed = capfd.readouterr().out
    scores = read_task_card(path).scores
    by_class = {row["name"]: row for row in scores["by_class"]}
    assert re.search(r"class weights: no 2\.\d+, yes 0\.6", printed)
    assert re.search(r" precision +recall +f1 +support\nno ", printed)
    assert list(by_class) == ["no", "yes"]
    assert sum(row["support"] for row in by_class.values()) == scores["num_dev_examples"] == 120
    assert {name: row["f1"] for name, row in by_class.items()} == {
        name: pytest.approx(scores["dev"][f"f1_{name}"]) for name in by_class
    }
    assert {line["step"] % 4 for line in read_metrics(recipe.run_dir)[:-1] if "eval_accuracy" in line} == {0}
    result = call(evaluate, [str(path), "--data", str(unbalanced[1])], monkeypatch, capfd)
    assert printed.partition("support\n")[2].strip().startswith(result.stdout.partition("support\n")[2].strip())
    page = render(recipe.run_dir)
    assert "support" in page
    assert "class_weights" in page
    assert "class weights | balanced" in (path / "README.md").read_text()


def test_a_changed_file_of_weights_is_refused(finetuning, unbalanced, tmp_path, alone, capsys):
    """A finished run refuses other class weights, and a file may move."""
    for name, weight in (("one", 5), ("two", 5), ("three", 6)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"yes": 1, "no": weight}))
    recipe = finetuning(*unbalanced, num_epochs=0.5, class_weights=tmp_path / "one.json")

    finetune(recipe, alone)

    assert "class weights: no 5, yes 1" in capsys.readouterr().out
    finetune(replace(recipe, class_weights=tmp_path / "two.json"), alone)
    with pytest.raises(ValueError, match="other contents of `class weights`"):
        finetune(replace(recipe, class_weights=tmp_path / "three.json"), alone)
    with pytest.raises(ValueError, match="was started with a `class weights`"):
        finetune(replace(recipe, class_weights="balanced"), alone)


def test_weights_without_labels_to_learn_are_refused(tmp_path):
    """A student that learns no labels has no use for their weights."""
    fields = dict.fromkeys(("checkpoint", "run_dir"), tmp_path)
    with pytest.raises(ValueError, match="--class-weights `balanced` has no effect here: it is for the loss of labels"):
        TaskDistillRecipe(task="tagging", unlabelled=(tmp_path,), class_weights="balanced", **fields)


def test_two_processes_weigh_and_stop_alike(finetuning, unbalanced, checkpoint, tmp_path, alone):
    """Two processes have the losses of one, with class weights, smoothing and early stopping."""
    train, dev = unbalanced
    recipe = finetuning(
        *(train, dev), num_epochs=9, patience=2, select="macro_f1", class_weights="balanced", log_every=1
    )
    finetune(recipe, alone)
    flags = {"checkpoint": checkpoint, "train": train, "dev": dev, "run-dir": tmp_path / "two", "num-epochs": 9}
    flags |= {"patience": 2, "select": "macro_f1", "class-weights": "balanced", "log-every": 1}
    flags |= {"learning-rate": 3e-3, "global-batch-size": 16, "dtype": "fp32", "dropout": 0}
    words = [str(word) for name, value in flags.items() for word in (f"--{name}", value)]
    command = [sys.executable, "-m", "training.launch", "2", "training.finetune", "classification", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)

    one, two = ([line for line in read_metrics(tmp_path / name) if "loss" in line] for name in ("run", "two"))

    assert len(one) < 9 * -(-len(train.read_text().splitlines()) // 16)
    assert [line["loss"] for line in two] == [pytest.approx(line["loss"], rel=1e-3) for line in one]
