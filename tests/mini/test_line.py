"""The line of bertline-mini: every stage is a command that there is, with flags that it takes."""

import shlex
from pathlib import Path

import pytest

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
    elif module == "training.pretrain":
        assert training.pretrain.recipe_from_arguments(arguments).run_dir == stage.result.parent
