"""Tests of the fine-tuning grid: its table against numpy, best checkpoint, resuming, failed runs, mistakes."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.commands import call
from tests.toy import write_classification
from training.checkpoint.reader import load_model, read_shape
from training.checkpoint.task_card import read_task_card
from training.checkpoint.weights import WEIGHTS_FILE
from training.distillation import tasks
from training.finetuning.run import finetune
from training.grid import GridRecipe, grid, look_up, main, with_learning_rates
from training.loop.recipe import RunMismatchError
from training.loop.run_directory import RunDirectory
from training.reports.grid_report import Outcome, Setting, best_outcome, format_report, plot_report, report

FAST = {"micro_batch_size": 16, "batch_sizes": (16,), "epochs": (2.0,), "dtype": "fp32", "dropout": 0.0}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    train, dev = (write_classification(folder / f"{seed}.jsonl", 160, seed) for seed in (0, 2))
    return {"train": (train,), "dev": (dev,)}


def recipe(checkpoint, data, run_dir, **changes):
    fields = {"learning_rates": (1e-2, 1e-5), "seeds": (0, 1), **FAST, **data, **changes}
    return GridRecipe(task="classification", checkpoint=checkpoint, run_dir=run_dir, **fields)


@pytest.fixture(scope="module")
def finished(checkpoint, data, tmp_path_factory, alone):
    """Return a grid of a learning rate that learns and one that does not, with its report."""
    run_dir = tmp_path_factory.mktemp("grid") / "run"
    return run_dir, grid(recipe(checkpoint, data, run_dir), alone)


@pytest.mark.parametrize(
    ("hidden_size", "expected"),
    [(128, (3e-4, 1.8e-4, 1.2e-4)), (512, (1e-4, 6e-5, 4e-5)), (768, (5e-5, 3e-5, 2e-5)), (1024, (2e-5, 1.2e-5, 8e-6))],
)
def test_learning_rates_fall_with_the_hidden_size(hidden_size, expected, data, tmp_path, alone, capsys):
    """The default learning rates are those of the paper for BERT-base, and higher for smaller encoders."""
    config = {"model_type": "bert", "hidden_size": hidden_size, "num_attention_heads": hidden_size // 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    given = recipe(tmp_path, data, tmp_path / "run", learning_rates=None)

    assert with_learning_rates(given, alone).learning_rates == expected
    assert f"by default for hidden size {hidden_size} (--learning-rates)" in capsys.readouterr().out
    assert with_learning_rates(recipe(tmp_path, data, tmp_path / "run"), alone).learning_rates == (1e-2, 1e-5)


def test_rows_are_mean_and_deviation_over_seeds(finished):
    """The rows have numpy's mean and deviation of the scores in the runs' task cards."""
    run_dir, _ = finished

    values = json.loads((run_dir / "grid.json").read_text())

    assert len(values["settings"]) == 2
    for row in [*values["settings"], values["unpretrained"]]:
        cards = [read_task_card(run_dir / run["name"] / "checkpoint") for run in row["runs"]]
        scores = [card.scores["dev"]["accuracy"] for card in cards]
        assert [card.provenance["recipe"]["seed"] for card in cards] == [0, 1]
        assert row["mean"] == pytest.approx(np.mean(scores))
        assert row["standard_deviation"] == pytest.approx(np.std(scores, ddof=1))
        assert (row["best"], row["min"], row["num_seeds"]) == (max(scores), min(scores), 2)
    assert values["baseline"] == {"majority label": cards[0].scores["majority label"]["accuracy"]}
    assert (run_dir / "grid.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_shows_the_report(finished):
    """The table shows each setting's mean, the unpretrained row, the baseline, and failed runs with their reason."""
    _, found = finished

    table = format_report(found)

    assert all(f"{100 * row.mean:.2f}" in table for row in (*found.settings, found.unpretrained))
    assert "learning rate 0.01, batch 16, epochs 2" in table
    assert "the best from random weights" in table
    assert f"majority label | {100 * found.baseline['majority label']:.2f}" in " ".join(table.split())
    failed = [run for row in found.settings for run in row.runs if run["failure"]]
    assert failed
    assert all(f"{run['name']}: accuracy is not above majority label" in table for run in failed)


def test_the_best_checkpoint_gives_the_number_of_runs(finished):
    """The best checkpoint is complete and gives the number of runs, and other runs keep no weights."""
    run_dir, found = finished
    card = read_task_card(run_dir / "checkpoint")

    assert card.scores["dev"]["accuracy"] == max(row.best for row in found.settings) == found.best["score"]
    assert (card.scores["num_settings"], card.scores["num_runs"]) == (2, 4)
    assert "optimistic" in card.scores["selection"]
    load_model(run_dir / "checkpoint", "classification")
    kept = [path.parent.parent.name for path in run_dir.glob(f"*/checkpoint/{WEIGHTS_FILE}")]
    assert kept == [found.best["name"]]
    assert (run_dir / "checkpoint" / WEIGHTS_FILE).stat().st_nlink == 2


@pytest.fixture
def trained(monkeypatch):
    """Return the names of runs that train, with their first step."""
    started, load_state = [], RunDirectory.load_state

    def load_and_note(run, *args):
        position = load_state(run, *args)
        started.append((run.path.name, position.step))
        return position

    monkeypatch.setattr(RunDirectory, "load_state", load_and_note)
    return started


@pytest.mark.slow
def test_finished_runs_are_not_run_again(finished, trained, checkpoint, data, tmp_path, alone):
    """A lost run is repeated with the same scores, and a longer list runs only the new settings."""
    run_dir, found = shutil.copytree(finished[0], tmp_path / "run"), finished[1]
    lost = next(run["name"] for row in found.settings for run in row.runs if run["name"] != found.best["name"])
    shutil.rmtree(run_dir / lost)

    again = grid(recipe(checkpoint, data, run_dir), alone)
    longer = grid(recipe(checkpoint, data, run_dir, learning_rates=(1e-2, 1e-5, 1e-4)), alone)

    assert again == found
    assert [row.setting.learning_rate for row in longer.settings] == [1e-2, 1e-5, 1e-4]
    assert trained == [(lost, 0), ("lr0.0001-batch16-epochs2-seed0", 0), ("lr0.0001-batch16-epochs2-seed1", 0)]


def test_changed_recipe_in_the_same_directory_is_refused(finished, checkpoint, data, alone):
    """A changed recipe in the same directory is refused."""
    with pytest.raises(ValueError, match=r"was started with dropout `0\.0`, not `0\.2`"):
        grid(recipe(checkpoint, data, finished[0], dropout=0.2), alone)


@pytest.mark.slow
def test_killed_grid_resumes(finished, trained, checkpoint, data, tmp_path, alone):
    """A killed grid resumes the half-finished run and gives the report of an undisturbed grid."""
    asked, save_state = recipe(checkpoint, data, tmp_path / "run", checkpoint_every=8), RunDirectory.save_state

    def save_and_die(run, *arguments, kind="step", **named):
        save_state(run, *arguments, kind=kind, **named)
        run.finish_writing()
        if kind == "step" and run.path.name.endswith("seed1"):
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "save_state", save_and_die)
        with pytest.raises(KeyboardInterrupt):
            grid(asked, alone)
    again = grid(asked, alone)

    assert again == finished[1]
    assert trained[:3] == [(f"lr0.01-batch16-epochs2-seed{seed}", step) for seed, step in ((0, 0), (1, 0), (1, 8))]
    assert len(trained) == 7


def test_other_data_at_the_same_place_are_noticed(finished, checkpoint, data, tmp_path):
    """A finished run is refused if its data changed, and accepted if its data moved."""
    moved, changed = (shutil.copy(data["dev"][0], tmp_path / name) for name in ("moved.jsonl", "changed.jsonl"))
    with open(changed, "a") as file:
        file.write(json.dumps({"text": "cat", "label": "yes"}) + "\n")
    cells = [recipe(checkpoint, data | {"dev": (dev,)}, finished[0]) for dev in (moved, changed)]
    first = [cell.recipes(cell.settings()[0])[0] for cell in cells]

    assert look_up(first[0]).scores
    with pytest.raises(
        RunMismatchError, match="was started with other contents of `dev`; choose another run directory"
    ):
        look_up(first[1])


@pytest.mark.usefixtures("any_number")
def test_diverged_run_is_written_down_and_the_grid_goes_on(checkpoint, data, tmp_path, alone, capsys):
    """A diverged run counts as failed, without a score, and is not repeated."""
    changes = {"learning_rates": (1e30, 1e-2), "seeds": (0,), "from_scratch": False}
    asked = recipe(checkpoint, data, tmp_path / "run", **changes)

    found = grid(asked, alone)
    capsys.readouterr()
    again = grid(asked, alone)

    bad, good = found.settings
    assert "the loss is nan" in bad.runs[0]["failure"]
    assert (bad.mean, bad.best, bad.num_failed) == (None, None, 1)
    assert (good.num_failed, good.standard_deviation, found.best["learning_rate"]) == (0, None, 1e-2)
    assert again == found
    assert "2 runs are finished" in capsys.readouterr().out
    assert not (tmp_path / "run" / bad.runs[0]["name"] / "state").exists()
    failed = asked.recipes(asked.settings()[0])[0]
    assert look_up(failed).error == bad.runs[0]["failure"]
    assert look_up(replace(failed, train=data["dev"])) is None  # other data: the run is tried again


@pytest.mark.usefixtures("any_number")
def test_grid_whose_runs_all_diverge_fails(checkpoint, data, tmp_path, alone):
    """A grid whose runs all diverge fails."""
    with pytest.raises(ValueError, match="all 2 runs failed; the first: the loss is nan"):
        grid(recipe(checkpoint, data, tmp_path / "run", learning_rates=(1e30,)), alone)


def test_a_best_run_below_the_baseline_fails(checkpoint, data, tmp_path, alone, capsys):
    """A grid whose best run beats no baseline writes its report and fails."""
    with pytest.raises(ValueError, match="all 1 runs failed; the best: accuracy is not above majority label"):
        grid(recipe(checkpoint, data, tmp_path / "run", learning_rates=(1e-9,), seeds=(0,), from_scratch=False), alone)

    assert (tmp_path / "run" / "grid.json").is_file()
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert "(best)" not in capsys.readouterr().out


def test_keep_all_keeps_all_weights(checkpoint, data, tmp_path, alone):
    """`keep="all"` keeps the weights of every run."""
    grid(recipe(checkpoint, data, tmp_path, seeds=(0,), keep="all", from_scratch=False), alone)

    assert len(list(tmp_path.glob(f"*/checkpoint/{WEIGHTS_FILE}"))) == 2
    assert torch.equal(*(load_model(path, "classification").classifier.weight for path in best_checkpoints(tmp_path)))


def best_checkpoints(run_dir):
    best = json.loads((run_dir / "grid.json").read_text())["best"]["name"]
    return run_dir / "checkpoint", run_dir / best / "checkpoint"


def outcome(rate, seed, score, error=None):
    scores = {"dev": {"f1": score}, "dev, otherwise": {"f1": 0.9}, "first words": {"f1": 0.1}, "num_dev_examples": 9}
    return Outcome(
        name=f"{rate}-{seed}", setting=Setting(rate, 16, 3), seed=seed, scores={} if error else scores, error=error
    )


def test_ties_go_to_the_smaller_learning_rate():
    """Ties go to the smaller learning rate, and a NaN score is never the best."""
    outcomes = [outcome(5e-5, 0, 0.8), outcome(3e-5, 1, 0.8), outcome(3e-5, 0, 0.8), outcome(2e-5, 0, float("nan"))]

    assert best_outcome(outcomes, "f1") is outcomes[2]
    assert best_outcome(outcomes[::-1], "f1") is outcomes[2]


@pytest.mark.parametrize(("score", "known", "fails"), [(1.0, 1.0, False), (0.9, 0.9, True), (0.8, 1.0, True)])
def test_nothing_is_above_a_perfect_baseline(score, known, fails):
    """A score equal to a perfect baseline passes, and one equal to any other baseline fails."""
    found = replace(outcome(1, 0, score), scores={"dev": {"f1": score}, "commonest tag": {"f1": known}})

    assert bool(found.failure("f1")) == fails


def test_rows_of_failed_runs_only_can_be_shown(tmp_path):
    """Table and plot show rows without scores with a dash."""
    found = report("spans", [outcome(1, 0, 0, "no number"), outcome(0.1, 0, 0.05)], [outcome(1, 0, 0, "none")], "f1")

    lines = format_report(found).splitlines()
    plot_report(found, tmp_path / "grid.png")

    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[3:5]]
    assert rows[0][1:] == ["-", "-", "-", "-", "1", "1"]
    assert rows[1][:3] == ["learning rate 0.1, batch 16, epochs 3", "5.00", "-"]  # no run is marked as the best
    assert lines[-3:] == ["failed: 1-0: no number", "failed: 0.1-0: f1 is not above first words", "failed: 1-0: none"]


def test_picture_has_the_numbers_of_the_table(monkeypatch):
    """The plot has the table's numbers in percent, and names failures and the best."""
    drawn = []
    monkeypatch.setattr("training.reports.plot.save_figure", lambda figure, path: drawn.append(figure))
    scratch = [replace(outcome(3e-5, seed, score), name=f"scratch-{seed}") for seed, score in enumerate((0.05, 0.65))]
    outcomes = [outcome(3e-5, 0, 0.8), outcome(3e-5, 1, 0.82), outcome(1, 0, 0, "no number")]

    plot_report(report("spans", outcomes, scratch, "f1"), "grid.png")

    (axes,) = drawn[0].axes

    assert [text.get_text() for text in axes.texts] == ["81.00 ± 1.41  (best)", "1 failed", "35.00 ± 42.43, 1 failed"]
    assert axes.get_xlabel() == "F1 on dev, percent"
    assert {tick.get_text() for tick in axes.get_xticklabels()} > {"20", "40", "60", "80"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dev": ()}, "a grid chooses by the score on held-out data; add --dev"),
        ({"seeds": (1, 1)}, "seeds must be one or more different values: `1 1`"),
    ],
)
def test_impossible_grids_are_refused(changes, message, checkpoint, data, tmp_path):
    """An impossible grid is refused before any run."""
    with pytest.raises(ValueError, match=message):
        recipe(checkpoint, data, tmp_path / "run", **changes)


def test_a_grid_of_a_smaller_encoder(checkpoint, data, tmp_path, alone):
    """Some layers of the checkpoint are compared with as many of random weights."""
    asked = recipe(checkpoint, data, tmp_path / "run", take_layers=(0,), seeds=(0,), epochs=(0.1,))
    for from_scratch in (False, True):
        (run,) = asked.recipes(asked.settings()[0], from_scratch=from_scratch)

        assert read_shape(finetune(run, alone)).num_hidden_layers == 1


def test_teachers_are_found_as_in_distillation(checkpoint, tmp_path, data, alone, monkeypatch):
    """Names of the hub and folders of sentence-transformers work for student and teachers of a grid."""
    folder = tmp_path / "st"
    folder.mkdir()
    shutil.copytree(checkpoint, folder / "0_Transformer")
    modules = [{"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    monkeypatch.setattr(tasks, "resolve_on_all", lambda path, world: folder if path == Path("org/name") else path)
    asked = recipe(Path("org/name"), data, tmp_path / "run", teacher=(checkpoint,))

    found = tasks.with_directories(asked, alone)

    assert found.checkpoint == folder / "0_Transformer"
    assert found.teacher == (checkpoint,)


def test_command_takes_lists_and_reports_a_mistake_in_one_line(checkpoint, data, tmp_path, monkeypatch, capfd):
    """The command prints the number of runs first, and then a mistake in one line."""
    files = ["--checkpoint", checkpoint, "--train", data["train"][0], "--dev", "missing.jsonl", "--run-dir", tmp_path]
    lists = ["--learning-rates", "5e-5", "3e-5", "2e-5", "--batch-sizes", "16", "32", "--epochs", "2", "3", "4"]
    arguments = [*files, *lists, "--seeds", "7", "--no-from-scratch"]

    result = call(main, ["classification", *map(str, arguments)], monkeypatch, capfd)

    assert result.stdout.startswith("18 runs (settings x seeds: 18 x 1), 54 epochs in all\n")
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)
    assert "missing.jsonl" in result.stderr


def test_unknown_metric_is_refused_before_anything_is_run(finished, checkpoint, data, tmp_path, alone):
    """An unknown metric is refused before any run, with the known ones."""
    names = ", ".join(read_task_card(finished[0] / "checkpoint").scores["dev"])
    with pytest.raises(ValueError, match=f"no score `bleu` on dev; --metric is one of: {names}$"):
        grid(recipe(checkpoint, data, tmp_path / "run", metric="bleu"), alone)
    assert not (tmp_path / "run").exists()


def test_checkpoint_of_another_run_is_not_overwritten(finished, checkpoint, data, alone):
    """A grid refuses a directory of another run, and fine-tuning refuses a grid's directory."""
    with pytest.raises(ValueError, match="pretrain` is a run of pretraining; choose another run directory"):
        grid(recipe(checkpoint, data, checkpoint.parent), alone)
    cell = recipe(checkpoint, data, finished[0]).recipes(Setting(1e-2, 16, 2.0))[0]
    with pytest.raises(
        RunMismatchError, match=r"holds a checkpoint without recipe\.json .*; choose another run directory"
    ):
        finetune(replace(cell, run_dir=finished[0]), alone)


def test_best_run_without_weights_is_named(finished, checkpoint, data, tmp_path, alone):
    """The error names a best run whose weights were dropped, and keeps all files."""
    run_dir = shutil.copytree(finished[0], tmp_path / "run")
    before = sorted(run_dir.glob(f"*/checkpoint/{WEIGHTS_FILE}"))

    with pytest.raises(ValueError, match="whose weights were dropped; remove it to run it again"):
        grid(recipe(checkpoint, data, run_dir, learning_rates=(1e-5,)), alone)

    assert sorted(run_dir.glob(f"*/checkpoint/{WEIGHTS_FILE}")) == before
