"""The line of bertline-mini: every stage is a command that there is, with flags that it takes."""

import shlex
from pathlib import Path

import pytest

import mini.scores
import training.ablations.__main__
import training.contrastive
import training.finetune
import training.grid
import training.pretrain
from mini.line import Arguments, Line
from mini.tasks import TASKS

STAGES = list(Line(Arguments(data=Path("the data"), out=Path("an out"))).stages())


def test_results_are_different():
    """No stage hides another one's, and models are shipped under names of their own."""
    results = [stage.result for stage in STAGES if stage.result]
    assert len(set(results)) == len(results)
    names = [task.shipped_as for task in TASKS if task.shipped_as]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.title)
def test_stages_are_commands(stage, monkeypatch):
    """Paths with spaces stay whole."""
    module, *arguments = shlex.split(stage.arguments)
    assert {"the data", "an out"} & {part for word in arguments for part in word.split("/")[:1]}
    if module == "training.grid":
        monkeypatch.setattr("sys.argv", ["grid", *arguments])
        recipe = training.grid.parse(training.grid.GridRecipe, module, "")
        assert recipe.run_dir == stage.result.parent
    elif module == "training.finetune":
        monkeypatch.setattr("sys.argv", ["finetune", *arguments])
        assert training.finetune.parse(training.finetune.FinetuneRecipe, module, "").run_dir == stage.result.parent
    elif module == "training.contrastive":
        monkeypatch.setattr("sys.argv", ["contrastive", *arguments])
        recipe = training.contrastive.parse(training.contrastive.ContrastiveRecipe, module, "")
        assert recipe.run_dir == stage.result.parent
    elif module == "training.ablations":
        monkeypatch.setattr("sys.argv", ["ablations", *arguments])
        recipe = training.ablations.__main__.parse(training.ablations.__main__.AblationsRecipe, module, "")
        assert stage.result in [recipe.run_dir / table.picture for table in recipe.chosen]
    elif module == "training.pretrain":
        assert training.pretrain.recipe_from_arguments(arguments).run_dir == stage.result.parent
    elif module == "mini.scores":
        monkeypatch.setattr("sys.argv", ["scores", *arguments])
        found = mini.scores.parse(mini.scores.ScoresArguments, module, "")
        assert Line(found).scores(found.name) == stage.result


def test_only_some_tasks():
    """What they need comes before them; questions that text asks of itself only where a task goes on from these."""
    titles = [stage.title for stage in Line(Arguments(data=Path("data"), only=("sst-2",))).stages()]
    assert titles[titles.index("The checkpoint in 16 bits") + 1 :] == [
        "Fine-tuning: SST-2, sentiment",
        "Export: sst-2, fp32",
        "Export: sst-2, int8",
        "Scores: sst-2",
        "Keep the models",
        "The page of results",
    ]
    titles = [stage.title for stage in Line(Arguments(data=Path("data"), only=("squad-v1",))).stages()]
    assert "Questions that text asks of itself" in titles


def test_ablations_alone():
    """They need nothing of bertline-mini's own."""
    stages = list(Line(Arguments(data=Path("data"), only=("ablations",))).stages())
    assert [stage.title for stage in stages] == [
        "What each part of BERT is worth",
        "Keep the models",
        "The page of results",
    ]


def test_unknown_tasks_are_named():
    """With those that there are."""
    with pytest.raises(ValueError, match="unknown task `sst2`; there are sst-2, cola"):
        Arguments(data=Path("data"), only=("sst2",))
