"""Tests of the paper's tables on toy data: cells against their runs; killed, shared and wrong runs."""

import json
import lzma
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recipes.ablations.__main__ import AblationsRecipe, ablations
from recipes.ablations.data import PreparedData, find_text
from recipes.ablations.pretrain import AblationPretrainRecipe
from recipes.ablations.results import CellScores, Result, collect, format_cell, plot_result
from recipes.ablations.runs import Runs
from recipes.ablations.scales import SCALES
from recipes.ablations.tables import LABELLED_DATA, make_table
from tests.toy import WORDS, make_text
from training.checkpoint.reader import read_config
from training.checkpoint.task_card import read_task_card
from training.grid import run_cell


def write_pairs(path, seed):
    """Write pairs of sentences; a pair with equal words is a paraphrase."""
    rng = np.random.default_rng(seed)
    lines = ["label\tid1\tsentence1\tsentence2"]
    for number in range(40):
        one, other = (" ".join(rng.choice(WORDS, 6)) for _ in range(2))
        lines.append(f"{number % 2}\t{number}\t{one}\t{one if number % 2 else other}")
    path.write_bytes(lzma.compress(("\n".join(lines) + "\n").encode()))


def write_conll(path, seed):
    """Write sentences in which each `cat` is tagged."""
    rng = np.random.default_rng(seed)
    sentences = [rng.choice(WORDS, 6) for _ in range(40)]
    lines = ["\n".join(f"{word}\t{'B-cat' if word == 'cat' else 'O'}" for word in words) for words in sentences]
    path.write_text("\n\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a data folder with text, MRPC and NER."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("pretrain", "glue/MRPC", "ner/wnut17"):
        (folder / name).mkdir(parents=True)
    for seed in range(3):
        (folder / f"pretrain/{seed}.txt").write_text(make_text(12, seed))
    for seed, split in enumerate(("train", "dev")):
        write_pairs(folder / f"glue/MRPC/{split}.tsv.xz", seed)
        write_conll(folder / f"ner/wnut17/{split}.conll", seed)
    return folder


def finishing_times(run_dir):
    """Return when each finished run wrote its result."""
    return {path.parent: path.stat().st_mtime_ns for path in run_dir.glob("*/**/checkpoint/task.json")}


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory, alone):
    """Run table 5 at scale smoke for NER with two seeds; kill it after the third fine-tuning and restart it.

    Return the recipe, the results, and the state when it was killed: the report, and when each run finished.
    """
    run_dir = tmp_path_factory.mktemp("ablations") / "run"
    recipe = AblationsRecipe(data=data, run_dir=run_dir, tables=("5",), scale="smoke", tasks=("NER",), seeds=(0, 1))
    with pytest.MonkeyPatch.context() as patch:
        cells = iter([run_cell] * 3)
        patch.setattr("recipes.ablations.runs.run_cell", lambda *arguments: next(cells)(*arguments))
        with pytest.raises(StopIteration):
            ablations(recipe, alone)
    killed = (run_dir / "table-5.md").read_text(), finishing_times(run_dir)
    return recipe, ablations(recipe, alone), killed


def plain(path):
    """Return the text without the spaces that align tables."""
    return " ".join(path.read_text().split())


@pytest.mark.slow
def test_cells_are_means_over_seeds(finished):
    """A cell has the mean and sample deviation of the scores in the runs' task cards, and the baseline."""
    recipe, (result,), _ = finished
    directories = {
        "masked LM and NSP (BERT)": "bert/NER",
        "no NSP": "no-nsp/NER",
        "left-to-right, no NSP": "left-to-right/NER",
        "left-to-right, no NSP, + BiLSTM": "left-to-right/NER-bilstm",
        "left-to-right and right-to-left, no NSP": "concatenated/NER",
        "not pretrained": "bert/NER-scratch",
    }

    heading = "Ablations, scale smoke (too small to compare: it only shows that everything works), seeds 0 1"
    assert f"# Table 5: pretraining tasks\n\n{heading}. " in (recipe.run_dir / "table-5.md").read_text()
    table = json.loads((recipe.run_dir / "table-5.json").read_text())
    assert table["heading"] == heading

    assert [row["label"] for row in table["rows"]] == list(directories)
    for row, name in zip(table["rows"], directories.values(), strict=True):
        cards = [read_task_card(recipe.run_dir / f"finetune/{name}-seed{seed}/checkpoint") for seed in (0, 1)]
        scores = [card.scores["dev"]["f1"] for card in cards]
        assert row["scores"]["NER"]["scores"] == scores
        assert row["scores"]["NER"]["mean"] == pytest.approx(np.mean(scores))
        assert row["scores"]["NER"]["standard_deviation"] == pytest.approx(np.std(scores, ddof=1))
        assert table["baselines"]["NER"] == {"commonest tag": cards[0].scores["commonest tag"]["f1"]}
        line = f"| {row['label']} | {row['lm_loss'] or 0:.3f} | {100 * np.mean(scores):.1f} ± "
        assert line.replace(" 0.000 ", " ") in plain(recipe.run_dir / "table-5.md")
    assert result.lm_losses[-1] is None  # not pretrained
    assert (recipe.run_dir / "table-5.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_rows_differ_in_their_recipes(finished):
    """The rows' runs differ in direction, next sentences and BiLSTM, and pretrain for the same steps."""
    recipe, _, _ = finished
    paths = recipe.run_dir.glob("pretrain/*/recipe.json")
    pretrainings = {path.parent.name: json.loads(path.read_text()) for path in paths}

    assert len(pretrainings) == 4
    assert {fields["num_steps"] for fields in pretrainings.values()} == {8}
    assert pretrainings["left-to-right"]["direction"] == "left-to-right"
    assert not pretrainings["no-nsp"]["next_sentences"]
    bilstm = read_config(recipe.run_dir / "finetune/left-to-right/NER-bilstm-seed0/checkpoint")
    assert (bilstm["direction"], bilstm["bilstm_size"]) == ("left-to-right", 8)


def test_maskings_are_the_papers(tmp_path):
    """Table 8 has the paper's fractions of [MASK], same and random tokens, and its features column is frozen."""
    runs = every_run("small", tmp_path)
    table = make_table("8", runs.scale, ("NER",))

    recipes = {row.label: runs.pretraining(row.pretraining) for row in table.rows}

    assert recipes.pop("not pretrained") == recipes["80/10/10"]
    assert list(recipes) == ["80/10/10", "100/0/0", "80/0/20", "80/20/0", "0/20/80", "0/0/100"]
    for label, recipe in recipes.items():
        mask, same, random = (int(number) / 100 for number in label.split("/"))
        assert (recipe.mask_fraction, recipe.random_fraction) == (mask, random)
        assert 1 - recipe.mask_fraction - recipe.random_fraction == pytest.approx(same)
    features = runs.finetunings(table.rows[0], table.columns[-1])[0]
    assert (features.frozen, features.layers, features.bilstm) == (True, (-1, -2), 128)
    assert features.num_epochs == 3 * runs.finetunings(table.rows[0], table.columns[0])[0].num_epochs


@pytest.mark.slow
def test_again_only_looks_up(finished, alone, capsys, monkeypatch):
    """A repeated command trains no finished run again."""
    recipe, results, _ = finished
    monkeypatch.setattr("recipes.ablations.runs.pretrain_ablation", None)
    monkeypatch.setattr("recipes.ablations.runs.run_cell", None)

    again = ablations(recipe, alone)

    assert again == results
    assert "16 runs, 16 are finished" in capsys.readouterr().out


@pytest.mark.slow
def test_deleted_weights_are_made_again(finished, alone, tmp_path, monkeypatch):
    """Weights that were deleted are pretrained again; the finished runs that started from them are looked up."""
    recipe = replace(finished[0], run_dir=Path(shutil.copytree(finished[0].run_dir, tmp_path / "run")))
    shutil.rmtree(recipe.run_dir / "pretrain/bert")
    monkeypatch.setattr("recipes.ablations.runs.run_cell", None)

    assert ablations(recipe, alone) == finished[1]


def change(path, **fields):
    """Change fields of a record, as if the run had been started with other settings."""
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.slow
def test_refused_runs_stop_no_others(finished, alone, tmp_path, capsys):
    """Refused runs and runs that need them are named and left out; others run, and tables are written without plots."""
    recipe = replace(finished[0], run_dir=Path(shutil.copytree(finished[0].run_dir, tmp_path / "run")))
    change(recipe.run_dir / "pretrain/no-nsp/recipe.json", dropout=0.5)
    change(recipe.run_dir / "finetune/bert/NER-seed0/recipe.json", data={"train": ["another"]})
    shutil.rmtree(recipe.run_dir / "finetune/left-to-right/NER-seed1")

    with pytest.raises(ValueError, match="4 runs were skipped, for the reasons above; remove their directories in"):
        ablations(recipe, alone)

    assert not list(recipe.run_dir.glob("table-*.png"))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("skipped: ")]
    for line, reason in zip(
        sorted(lines),
        (
            r"`.*/no-nsp/NER-seed0` builds on `.*/pretrain/no-nsp`",
            r"`.*/no-nsp/NER-seed1` builds on",
            r"run `.*/bert/NER-seed0` was started with other contents of `train`; choose",
            r"run `.*/pretrain/no-nsp` was started with dropout `0\.5`, not `0\.0`",
        ),
        strict=True,
    ):
        assert re.search(reason, line)
    assert (recipe.run_dir / "finetune/left-to-right/NER-seed1/checkpoint/task.json").is_file()
    assert "| no NSP | | | |" in plain(recipe.run_dir / "table-5.md")


@pytest.mark.slow
def test_killed_run_goes_on(finished):
    """A restarted command repeats no finished run, and the first report has the runs to come."""
    recipe, _, (report, times) = finished

    assert "(1 to come)" in report
    assert len(times) == 3 + 3
    assert times.items() <= finishing_times(recipe.run_dir).items()


def test_steps_are_halved_from_both_starts(tmp_path):
    """Each point is a run with its own schedule; the first is not pretrained, and the last is shared with table 5."""
    runs = every_run("smoke", tmp_path)

    rows = make_table("steps", runs.scale, ("NER",)).rows

    assert [row.position for row in rows] == [0, 1, 2, 4, 8] * 2
    trained = [row for row in rows if not row.from_scratch]
    assert [runs.pretraining(row.pretraining).num_steps for row in trained] == [1, 2, 4, 8] * 2
    shared = {row.pretraining.name for row in make_table("5", runs.scale, ("NER",)).rows}
    assert {row.pretraining.name for row in rows} & shared == {"bert", "left-to-right"}


@pytest.mark.slow
def test_another_scale_needs_another_directory(finished, alone):
    """The errors name a changed scale or data set, a missing file, and the remedy."""
    recipe, _, _ = finished
    fields = {"data": recipe.data, "run_dir": recipe.run_dir, "tables": ("5",)}
    for changes, message in (
        ({"scale": "small", "tasks": ("NER",)}, "was made from another text .* choose another run directory"),
        ({"scale": "smoke", "tasks": ("RTE",)}, r"no `glue/RTE/train.tsv` .* leave RTE out of --tasks"),
        ({"scale": "smoke", "tasks": ("NER",), "text": "no/*.txt"}, "fewer than two files `no/"),
    ):
        with pytest.raises(ValueError, match=message):
            ablations(AblationsRecipe(**fields | changes), alone)
    run = recipe.run_dir / "pretrain" / "bert"
    with pytest.raises(ValueError, match="bert` is a run of pretraining; choose another run directory"):
        ablations(AblationsRecipe(**fields | {"scale": "smoke", "tasks": ("NER",), "run_dir": run}), alone)
    with pytest.raises(ValueError, match="table 8 has no column among SQuAD; its tasks: SST-2, NER"):
        AblationsRecipe(**fields | {"tables": ("8",), "tasks": ("SQuAD",)})


def every_run(scale, folder):
    """Return the runs of a scale on files that need not exist."""
    labelled = dict.fromkeys(LABELLED_DATA, (folder / "train", folder / "dev"))
    prepared = PreparedData(corpus=folder / "corpus", dev_corpus=folder / "dev", labelled=labelled)
    return Runs(run_dir=folder, scale=SCALES[scale], seeds=SCALES[scale].seeds, prepared=prepared)


@pytest.mark.parametrize("scale", SCALES)
def test_every_run_of_every_scale_is_possible(scale, tmp_path):
    """Every recipe of every table is valid, a directory belongs to one recipe, and pretraining comes first."""
    runs = every_run(scale, tmp_path)
    tables = [make_table(name, runs.scale, tuple(LABELLED_DATA)) for name in ("5", "6", "8", "steps")]

    plan = runs.plan(tables)

    pretrained = set()
    for recipe in plan:
        if isinstance(recipe, AblationPretrainRecipe):
            pretrained.add(recipe.run_dir / "checkpoint")
        else:
            assert recipe.checkpoint in pretrained
    by_directory = {}
    for table in tables:
        for row in table.rows:
            for column in table.columns:
                for recipe in runs.finetunings(row, column):
                    assert by_directory.setdefault(recipe.run_dir, recipe) == recipe

    assert all(collect(table, runs, {}).baselines == [None] * len(table.columns) for table in tables)


def test_text_files_are_spread_and_one_is_held_out(tmp_path):
    """The training files are spread over the text, and the last file is held out."""
    for number in range(7):
        (tmp_path / f"{number}.txt").touch()

    files, held_out = find_text(tmp_path, "*.txt", 3)

    assert [path.name for path in files] == ["0.txt", "2.txt", "4.txt"]
    assert held_out.name == "6.txt"


def test_cells_show_deviation_and_missing_runs():
    """A cell shows the deviation of several scores, failed runs, and runs to come."""
    cell = CellScores(scores=(0.5, 0.6), num_runs=4, num_failed=1)

    assert format_cell(cell) == "55.0 ± 7.1 (1 failed) (1 to come)"
    assert format_cell(CellScores(scores=(0.5,), num_runs=1, num_failed=0)) == "50.0"
    assert format_cell(CellScores(scores=(), num_runs=2, num_failed=2)) == "failed"
    assert format_cell(CellScores(scores=(), num_runs=2, num_failed=0)) == ""


@pytest.mark.parametrize(("name", "axis"), [("8", "xaxis"), ("steps", "yaxis")])
def test_pictures_are_in_percent(name, axis, monkeypatch):
    """Plots show percent like the tables, and bars are labelled with their numbers."""
    drawn = []
    monkeypatch.setattr("recipes.ablations.results.save_figure", lambda figure, path: drawn.append(figure))
    table = make_table(name, SCALES["small"], ("NER",))
    cells = [[CellScores(scores=(0.25, 0.75), num_runs=2, num_failed=0)] * len(table.columns) for _ in table.rows]
    baselines = [("commonest tag", 0.1)] * len(table.columns)

    plot_result(Result(table=table, cells=cells, lm_losses=[], baselines=baselines), Path("table.png"))

    axes = drawn[0].axes[0]
    ticks = {tick.get_text() for tick in getattr(axes, axis).get_ticklabels()}

    assert {"20", "40", "60"} <= ticks
    assert axes.get_title() == "NER, F1, percent"
    assert "commonest tag, 10.0" in axes.get_xlabel()
    assert [text.get_text() for text in axes.texts] == ["50.0 ± 35.4"] * (len(table.rows) if name == "8" else 0)
