"""Pipeline of bertline-mini: every stage is an existing command with valid flags."""

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest

import export.__main__
import recipes.ablations.__main__
import recipes.mini.__main__
import recipes.mini.data
import recipes.mini.publish
import recipes.mini.scores
import recipes.mini.search
import recipes.mini.teachers
import recipes.mini.to_fp16
import recipes.mini.trim
import training.contrastive
import training.corpus
import training.finetuning.recipe
import training.grid
import training.pretrain
import training.vocab
from recipes.mini.cards import notes
from recipes.mini.pipeline import Arguments, Pipeline, commands_of
from recipes.mini.results import FOLDER, PAGE, page_of, read_records
from recipes.mini.tasks import CLOZE, DISTILLED, all_trainings, task_names
from tasks.bundle.files import atomic_write, sha256
from tests.commands import call
from tests.serving.models import write_model
from training.checkpoint.weights import checkpoint_digest
from training.command_line.command import parse
from training.distillation.tasks import TaskDistillRecipe

STAGES = list(Pipeline(Arguments(data=Path("the data"), out=Path("an out"))).stages())
TITLES = {name: training.title for name, training in all_trainings().items()}


def titles(only, **arguments):
    """Return the titles of the stages for some tasks."""
    pipeline = Pipeline(Arguments(data=Path("data"), only=only, **arguments))
    return [stage.title for stage in pipeline.stages()]


def test_results_have_different_paths():
    """No two stages write the same result, and no two models are shipped under one name."""
    results = [stage.result for stage in STAGES if stage.result]

    assert len(set(results)) == len(results)
    assert len(set(task_names())) == len(task_names())


COMMANDS = {
    "training.vocab": (training.vocab.VocabRecipe, "out"),
    "training.corpus": (training.corpus.CorpusRecipe, "out"),
    "training.finetune": (training.finetuning.recipe.FinetuneRecipe, "run_dir"),
    "training.distill": (TaskDistillRecipe, "run_dir"),
    "training.contrastive": (training.contrastive.ContrastiveRecipe, "run_dir"),
    "training.grid": (training.grid.GridRecipe, "run_dir"),
    "recipes.ablations": (recipes.ablations.__main__.AblationsRecipe, "run_dir"),
    "export": (export.__main__.ExportArguments, "model_dir"),
    "recipes.mini.data": (recipes.mini.data.DataArguments, "out"),
    "recipes.mini.teachers": (recipes.mini.teachers.TeacherArguments, "out"),
    "recipes.mini.trim": (recipes.mini.trim.TrimArguments, "out"),
    "recipes.mini.search": (recipes.mini.search.SearchArguments, "out"),
    "recipes.mini.to_fp16": (recipes.mini.to_fp16.HalfArguments, "out"),
    "recipes.mini.scores": (recipes.mini.scores.ScoresArguments, "out"),
    "recipes.mini.publish": (Arguments, "out"),
    "recipes.mini.results": (Arguments, "out"),
}
"""Recipe of each command, and its field with the output path; pretraining has recipes by name."""


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.title)
def test_stages_are_commands(stage):
    """All flags exist, paths may contain spaces, and results are written where the pipeline looks for them."""
    module, *arguments = shlex.split(stage.arguments)
    if module == "training.pretrain":
        place = training.pretrain.recipe_from_arguments(arguments).run_dir
    else:
        recipe_type, name = COMMANDS[module]
        place = getattr(parse(recipe_type, module, "", arguments), name)
    assert place.parts[0] == "an out"
    assert stage.result is None or stage.result.is_relative_to(place)


LAST = ["Keep the models", "The page of results"]


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (
            "sst-2",
            [
                "The checkpoint in 16 bits",
                "Fine-tuning: SST-2, sentiment",
                *("Export: sst-2, fp32", "Export: sst-2, int8", "Scores: sst-2"),
            ],
        ),
        (
            "topic",
            [
                "The students' network in 16 bits",
                "Teacher: mpnet",
                "Teacher: Topic, AG News (13,462 of 120,000)",
                "Distillation: Topic, AG News (13,462 of 120,000)",
                *("topic in 16 bits", "Export: topic, fp32", "Export: topic, int8", "Scores: topic"),
            ],
        ),
        (
            "rerank",
            [
                *("Teacher: minilm", "Teacher: cross-encoder", "A third of the vocabulary of cross-encoder"),
                *("Queries and texts to rank", "Distillation: Ranking of texts for a query", "rerank in 16 bits"),
                *("Export: rerank, fp32", "Export: rerank, int8", "Scores: rerank"),
            ],
        ),
        ("ablations", ["Ablations"]),
    ],
)
def test_only_some_tasks(only, expected):
    """Selected tasks come with the stages that they need, such as a teacher, and no others."""
    found = titles((only,))

    assert found[found.index(expected[0]) :] == [*expected, *LAST]
    assert found[0] == (expected[0] if only == "ablations" else "Data")
    assert TITLES[CLOZE] not in found


@pytest.mark.parametrize("only", [("squad-v2",), ("squad-v1", "squad-v2")])
def test_task_that_starts_from_another(only):
    """The task that it starts from is trained before it, and once if both are selected."""
    found = titles(only)

    expected = [TITLES[name] for name in (CLOZE, "squad-v1", "squad-v2")]
    assert [title for title in found if title in expected] == expected


@pytest.mark.parametrize(
    ("only", "is_given"),
    [(["sst-2"], False), (["ablations"], True), ([], True)],
)
def test_part_of_the_models_needs_the_shipped_checkpoint(tmp_path, checkpoint, only, is_given, monkeypatch, capfd):
    """A part of the models is not made from another checkpoint than the shipped one."""
    monkeypatch.setattr("recipes.mini.__main__.MODELS", tmp_path)
    other = shutil.copytree(checkpoint, tmp_path / "bertline-mini")
    with open(other / "model.safetensors", "r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\1")
    arguments = ["--data", str(tmp_path), *(["--only", *only] if only else [])]
    arguments += ["--pretrained", str(checkpoint)] if is_given else []
    result = call(recipes.mini.__main__.main, arguments, monkeypatch, capfd)

    assert result.returncode == 1
    assert (
        f"the other fine-tuned models come from `{tmp_path}/bertline-mini`; start from the same checkpoint: --pre"
        in result.stderr
    )


def test_given_checkpoint_replaces_pretraining(checkpoint):
    """With `pretrained`, there is no pretraining, and every command of this package gets the flag."""
    given = Arguments(data=Path("data"), pretrained=checkpoint, only=("sst-2",))
    stages = list(Pipeline(given).stages())
    assert [stage.title for stage in stages][:2] == ["Data", "Fine-tuning: SST-2, sentiment"]
    assert f"--checkpoint {checkpoint} " in stages[1].arguments
    for stage in stages[-3:]:
        assert f"--pretrained {checkpoint}" in stage.arguments


def test_scores_of_another_checkpoint_are_refused(checkpoint, tmp_path, monkeypatch, capfd):
    """Scores of another checkpoint, other settings or other data are refused; the error names what to remove."""
    monkeypatch.setattr("recipes.mini.publish.MODELS", tmp_path / "models")
    flags = ["--data", str(tmp_path), "--out", str(tmp_path), "--pretrained", str(checkpoint)]
    own, commands = checkpoint_digest(checkpoint), commands_of("rte")
    (tmp_path / "glue/RTE").mkdir(parents=True)
    train = tmp_path / "glue/RTE/train.tsv.xz"
    train.write_bytes(b"rows")
    now = {"pretrained": own, "commands": commands, "data": {"DATA/glue/RTE/train.tsv.xz": sha256(train)}}
    results = []
    for record in (now, {"pretrained": "another"}, {"pretrained": own}, now | {"data": {}}):
        atomic_write(tmp_path / "rte/scores.json", json.dumps(record).encode())
        results.append(call(recipes.mini.publish.main, flags, monkeypatch, capfd))

    assert [result.returncode for result in results] == [0, 1, 1, 1]
    assert f"`{tmp_path}/rte` does not come from `{checkpoint}`; remove it to make it again" in results[1].stderr
    assert f"`{tmp_path}/rte` was made with other settings; remove it" in results[2].stderr
    message = f"`{tmp_path}/rte` was made from another `DATA/glue/RTE/train.tsv.xz`; remove it to make it again"
    assert message in results[3].stderr


def test_page_matches_the_records(monkeypatch):
    """docs/results.md is what the records in docs/results give."""
    monkeypatch.chdir(Path(__file__).parents[3])
    runs = [FOLDER / run.name for run in Pipeline(Arguments(data=Path("data"))).pretraining_runs()]

    assert page_of(runs, read_records()) == PAGE.read_text(encoding="utf-8")


def test_finished_student_is_not_trained_again(checkpoint, tmp_path):
    """The 16-bit checkpoint of a student is enough; its teacher and the corpora are not needed."""
    for name in ("topic", "bertline-small"):
        shutil.copytree(checkpoint, tmp_path / "fp16" / name)

    assert titles(("topic",), out=tmp_path)[:2] == ["Data", "Export: topic, fp32"]


@pytest.mark.parametrize("name", ["pretrained", *(task.name for task in DISTILLED)])
def test_cards_list_licences(name):
    """The notes of every shipped model list its sources and licences."""
    assert "## Sources and their licences" in notes(name)
    assert "Wikipedia" in notes(name)


def test_scores_without_their_checkpoint_are_refused(checkpoint, tmp_path):
    """Scores whose checkpoint is missing are an error that names both."""
    pipeline = Pipeline(Arguments(data=tmp_path, out=tmp_path / "out"))
    assert pipeline.scored() == []

    for name, network in (
        ("rerank", "trimmed/cross-encoder"),
        ("embed", "trimmed/minilm"),
        ("rte", "fp16/bertline-mini"),
    ):  # as the pipeline lists them, last first
        atomic_write(tmp_path / f"out/{name}/scores.json", b"{}")
        place = f"{tmp_path}/out/{name}"
        with pytest.raises(
            ValueError, match=f"missing checkpoint: .*{network}`; restore it, or remove its result `{place}`"
        ):
            pipeline.scored()


@pytest.fixture
def make(tmp_path, monkeypatch, capfd):
    """Run the pipeline without its stages, of which some fail; return how it ended, and the titles of the stages."""

    def make(flags, failing=()):
        done = []

        def run_stage(number, total, title, arguments):
            done.append(title)
            if title in failing:
                raise ValueError("it failed")

        monkeypatch.setattr("recipes.mini.__main__.run_stage", run_stage)
        monkeypatch.setattr("recipes.mini.__main__.MODELS", tmp_path)
        arguments = ["--data", str(tmp_path), "--out", str(tmp_path / "out"), *map(str, flags)]
        return call(recipes.mini.__main__.main, arguments, monkeypatch, capfd), done

    return make


def test_failed_task_does_not_stop_other_tasks(checkpoint, make):
    """Tasks that start from a failed task are skipped; the command fails at the end and names all of them."""
    flags = ["--pretrained", checkpoint, "--only", "squad-v1", "squad-v2", "sst-2", "topic", "sentiment"]
    teachers = ("Teacher: mpnet", TITLES["sentiment-teacher"], TITLES["topic-teacher"])

    result, done = make(flags, (TITLES["squad-v1"], *teachers))

    assert result.returncode == 1
    assert "it failed; continuing without squad-v1" in result.stdout
    assert "failed (see above): squad-v1, squad-v2, sentiment, topic" in result.stderr
    assert "Scores: sst-2" in done
    assert done[-2:] == LAST
    assert not {"Export: squad-v1, fp32", "Scores: squad-v1", TITLES["squad-v2"], "Scores: squad-v2"} & {*done}


@pytest.mark.parametrize("failing", ["Data", "Keep the models"])
def test_failure_of_a_common_stage_stops_the_pipeline(checkpoint, failing, make):
    """No stage runs after a failure of a stage that all tasks need."""
    result, done = make(["--pretrained", checkpoint], [failing])

    assert result.returncode == 1
    assert "it failed" in result.stderr
    assert done[-1] == failing


def test_students_do_not_need_the_shipped_checkpoint(checkpoint, tmp_path, make):
    """A distilled model starts from another network than `models/bertline-mini`, so that flag is not needed."""
    shutil.copytree(checkpoint, tmp_path / "bertline-mini")

    result, done = make(["--only", "topic"])

    assert result.returncode == 0, result.stderr
    assert "The students' network in 16 bits" in done
    assert not any("Pretraining, 1" in title for title in done)


def test_models_of_the_same_checkpoint_are_kept(checkpoint, tmp_path, monkeypatch, capfd):
    """Models of the same checkpoint stay, and others are replaced."""
    out, kept = tmp_path / "out", tmp_path / "models"
    for place in ("fp16/embed", "trimmed/minilm"):
        shutil.copytree(checkpoint, out / place)
    record = {"pretrained": checkpoint_digest(checkpoint), "commands": commands_of("embed")}
    atomic_write(out / "embed/scores.json", json.dumps(record).encode())
    for models, digest in ((out / "embed/int8", checkpoint_digest(checkpoint)), (kept, "another")):
        write_model(models, "embed", provenance={"checkpoint": {"sha256": digest}})
        (models / "embed/1/README.md").write_text("# embed\n")
    monkeypatch.setattr("recipes.mini.publish.MODELS", kept)
    flags = ["--data", str(tmp_path), "--out", str(out), "--pretrained", str(checkpoint)]
    replaced, same = (call(recipes.mini.publish.main, flags, monkeypatch, capfd) for _ in range(2))

    assert (replaced.returncode, same.returncode) == (0, 0), (replaced.stderr, same.stderr)
    assert f"{out}/embed/int8/embed/1 -> {kept}/embed/1" in replaced.stdout
    assert "all-MiniLM-L6-v2" in (kept / "embed/1/README.md").read_text()
    assert "->" not in same.stdout.replace(f"{checkpoint} -> {kept}/bertline-mini", "")


def test_mistakes_are_named(tmp_path):
    """The error for an unknown task lists the known ones, and a checkpoint must come from Bertline."""
    with pytest.raises(ValueError, match=r"unknown task `sst2` \(one of: sst-2, cola"):
        Arguments(data=Path("data"), only=("sst2",))
    with pytest.raises(ValueError, match="not a checkpoint that Bertline trained"):
        Arguments(data=Path("data"), pretrained=tmp_path)
