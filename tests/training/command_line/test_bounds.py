"""Tests that recipes refuse impossible numbers."""

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, get_type_hints

import pytest

from training.command_line.bounds import Bounds
from training.contrastive import ContrastiveRecipe
from training.finetuning.recipe import FinetuneRecipe
from training.loop.types import LoopSettings
from training.pretrain import PretrainRecipe

RECIPES = [
    FinetuneRecipe(task="spans", checkpoint=Path("a"), train=(Path("b"),), run_dir=Path("c")),
    ContrastiveRecipe(mode="supervised", checkpoint=Path("a"), train=(Path("b"),), run_dir=Path("c")),
    PretrainRecipe(corpus=Path("a"), run_dir=Path("c")),
]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("recipe", RECIPES, ids=["finetune", "contrastive", "pretrain"])
def test_recipes_refuse_nan_and_infinity(recipe, value):
    """The error names the field."""
    names = [item.name for item in fields(recipe) if item.init and "float" in item.type and "tuple" not in item.type]

    assert {"learning_rate", "max_minutes"} < set(names)

    for name in names:
        with pytest.raises(ValueError, match=f"{name}|--{name.replace('_', '-')}"):
            replace(recipe, **{name: value})


@pytest.mark.parametrize("recipe", RECIPES, ids=["finetune", "contrastive", "pretrain"])
def test_recipes_keep_the_bounds_of_the_loop(recipe):
    """Recipes keep the loop's bounds, also for fields with other defaults or, in fine-tuning, none."""
    shared = get_type_hints(LoopSettings, include_extras=True)
    own = get_type_hints(type(recipe), include_extras=True)
    if isinstance(recipe, FinetuneRecipe):
        shared["learning_rate"] = shared["learning_rate"] | None
    if isinstance(recipe, ContrastiveRecipe):  # a pair needs a negative; 0 is the whole batch
        shared["global_batch_size"] = Annotated[int, Bounds(least=2)]
        shared["micro_batch_size"] = Annotated[int, Bounds(least=0)]

    assert {name: own[name] for name in shared} == shared
