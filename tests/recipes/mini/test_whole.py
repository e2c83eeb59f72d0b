"""Pipeline from a pretrained checkpoint to shipped models and a page of results, on toy data."""

import importlib
import json
import lzma
import re
import shlex
import shutil

import numpy as np
import pytest

import recipes.mini.scores
from recipes.mini.pipeline import Arguments, Pipeline
from recipes.mini.tasks import CLOZE, DistilledTask, MiniTask
from tasks.bundle.model_directory import read_model_directory
from tests.commands import call
from tests.toy import WORDS, write_classification, write_spans
from training.checkpoint.reader import load_model

TASKS = (
    MiniTask(
        name="pets",
        title="Pets",
        kind="classification",
        train=["{made}/pets-train.jsonl"],
        dev="{data}/pets-dev.jsonl",
        test="{data}/pets-test.jsonl",
        metric="accuracy",
        learning_rates=(5e-3,),
        epochs=4,
        seeds=(0, 1),
    ),
    MiniTask(
        name="colours",
        title="Colours",
        kind="spans",
        train=["{made}/cloze.json"],
        dev="{data}/spans.json",
        metric="f1",
        learning_rates=(5e-3,),
        epochs=4,
        seeds=(0,),
        flags="--max-seq-length 48 --doc-stride 16 --max-query-length 16",
        after=CLOZE,
    ),
)

DISTILLED = (
    DistilledTask(
        name="embed",
        title="Vectors",
        kind="embedding",
        train=["{made}/texts.txt"],
        dev="{data}/glue/STS-B/dev.tsv.xz",
        metric="spearman",
        data_name="Pairs",
        flags="--dev-columns.text sentence1 --dev-columns.text-pair sentence2 --dev-columns.label score --pooling mean "
        "--teacher-pooling mean --global-batch-size 32 --train-seq-length 16 --dimensions 8",
    ),
    DistilledTask(
        name="sentiment",
        title="Pets",
        kind="classification",
        train=["{made}/pets-train.jsonl"],
        unlabelled=["{made}/texts.txt"],
        dev="{data}/pets-dev.jsonl",
        test="{data}/pets-test.jsonl",
        metric="accuracy",
        data_name="Pets",
        teacher_flags="--learning-rate 5e-3 --num-epochs 4",
        flags="--take-layers 0 --learning-rate 5e-3 --num-epochs 4",
    ),
)


@pytest.fixture
def line(tmp_path, checkpoint, monkeypatch):
    """Pipeline with all results that fine-tuning needs."""
    for module in ("tasks", "tables"):
        monkeypatch.setattr(f"recipes.mini.{module}.TASKS", TASKS)
    for module in ("tasks", "tables", "pipeline"):
        monkeypatch.setattr(f"recipes.mini.{module}.DISTILLED", DISTILLED)
    monkeypatch.setattr("recipes.mini.tasks.WINDOWS", "--max-seq-length 48 --doc-stride 16 --max-query-length 16")
    monkeypatch.setattr("recipes.mini.pipeline.PRETRAINING_STAGES", ("--max-minutes 1",))
    for name, value in {"publish.MODELS": "models", "results.PAGE": "docs/a.md", "results.FOLDER": "docs/a"}.items():
        monkeypatch.setattr(f"recipes.mini.{name}", tmp_path / value)
    only = ("pets", "colours", "embed", "sentiment")
    line = Pipeline(Arguments(data=tmp_path / "data", out=tmp_path / "out", only=only))
    for folder in (line.data / "glue/STS-B", line.out / "data", line.ablations):
        folder.mkdir(parents=True)
    for table in ("5", "8", "steps"):
        for kind in ("json", "md") if table == "8" else ("json", "md", "png"):
            (line.ablations / f"table-{table}.{kind}").write_text("a previous result")
    write_classification(line.out / "data/pets-train.jsonl", 400, 0)
    write_classification(line.data / "pets-dev.jsonl", 60, 1)
    write_classification(line.data / "pets-test.jsonl", 40, 2)
    write_spans(line.out / "data/cloze.json", 40, 0)
    write_spans(line.data / "spans.json", 20, 1)
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 6)) for _ in range(300)]
    (line.out / "data/texts.txt").write_text("\n".join(texts))
    write_spans(line.data / "squad.json", 20, 1)
    (line.data / "squad").mkdir()
    with lzma.open(line.data / "squad/dev-v1.1-part.json.xz", "wt") as file:
        file.write((line.data / "squad.json").read_text())
    with lzma.open(line.path("{data}/glue/STS-B/dev.tsv.xz"), "wt") as file:
        rows = [f"{one}\t{other}\t{rng.random():.3f}\n" for one, other in zip(texts[:50], texts[50:100], strict=True)]
        file.write("sentence1\tsentence2\tscore\n" + "".join(rows))
    (line.out / "bertline-mini").symlink_to(checkpoint.parent, target_is_directory=True)
    for place in (line.student, line.path("{out}/teachers/mpnet")):
        shutil.copytree(checkpoint, place)
    return line


@pytest.mark.slow
def test_pipeline_ships_models_and_a_page(line, monkeypatch, capfd):
    """All stages after the 16-bit checkpoint succeed; shipped models load, and their cards list licences."""
    stages = list(line.stages())
    first = next(number for number, stage in enumerate(stages) if "16 bits" in stage.title)
    for stage in stages[first:]:
        module, *arguments = shlex.split(stage.arguments)
        name = f"{module}.__main__" if module == "export" else module
        extra = ["--no-tune", "--max-drop", "100", "--min-cosine", "0"] if module == "export" else []
        result = call(importlib.import_module(name).main, [*arguments, *extra], monkeypatch, capfd)
        assert result.returncode == 0, (stage.title, result.stderr)
        assert stage.result is None or stage.result.exists()

    found = {name: json.loads(line.scores(name).read_text()) for name in ("pets", "colours", "embed", "sentiment")}
    assert found["pets"]["ways"]["test"]["served int8"]["same"] >= 38
    assert found["pets"]["cost"]["num_runs"] == 4
    assert found["colours"]["ways"]["dev"]["ONNX fp32"]["same"] == 20
    assert found["colours"]["cloze"]["cost"]["num_tokens"] > 0
    page = (line.out.parent / "docs/a.md").read_text()
    assert "recipe" in found["pets"]
    assert found["sentiment"]["ways"]["test"]["served int8"]["same"] >= 38
    assert {*found["sentiment"]["training"]} == {
        *("dev", "by_class", "teacher, sentiment-teacher", "fine-tuned", "majority label", "num_dev_examples")
    }
    assert found["sentiment"]["cost"]["num_runs"] == 3
    assert found["sentiment"]["beyond"]["everyday"]["of"] == 40
    assert found["embed"]["beyond"]["search"]["num_questions"] == 20
    row = r"^\| sentiment: Pets test, accuracy +\|( +\d+\.\d \|)( +- \|){2}( +\d+\.\d \|){2}"
    assert re.search(row, page, re.MULTILINE)
    assert re.search(r"^\| Pets: accuracy +\| +60 \|", page, re.MULTILINE)
    assert re.search(r"^\| Colours: F1 +\| +20 \|", page, re.MULTILINE)
    assert {path.name for path in (line.out.parent / "docs/a").iterdir()} == {
        *("ablations", "bertline-mini", "pets.json", "colours.json", "embed.json", "sentiment.json", "pretraining.png")
    }
    ablations = {path.name for path in (line.out.parent / "docs/a/ablations").iterdir()}
    assert ablations == {f"table-{table}.{kind}" for table in ("5", "steps") for kind in ("json", "md", "png")}
    assert "](results/ablations/table-steps.png)" in page
    assert "table-8" not in page
    models = line.out.parent / "models"
    assert {path.name for path in models.iterdir()} == {"bertline-mini", "embed", "sentiment"}
    assert load_model(models / "bertline-mini", "masked-lm").config.num_hidden_layers == 2
    assert read_model_directory(models / "sentiment/1").manifest.task == "classification"
    assert "SST-2, 67,349 phrases" in (models / "sentiment/1/README.md").read_text()

    assert [stage.title for stage in line.stages()][-2:] == ["Keep the models", "The page of results"]
    done = ("Fine-tuning", "Export", "Teacher", "Distillation")
    assert not any(stage.title.startswith(done) for stage in line.stages())

    (line.out / "pets/scores.json").unlink()
    stage = next(stage for stage in line.stages() if stage.title == "Scores: pets")
    arguments = [*shlex.split(stage.arguments)[1:], "--pretrained", str(line.out / "colours/checkpoint")]
    result = call(recipes.mini.scores.main, arguments, monkeypatch, capfd)
    assert result.returncode == 1
    assert f"`{line.out}/pets` does not come from `{line.out}/colours/checkpoint`; remove it" in result.stderr
