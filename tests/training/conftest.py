"""Recipes of runs that take a second."""

import pytest

from training.finetuning.recipe import FinetuneRecipe

LEARN = {"learning_rate": 3e-3, "global_batch_size": 16, "micro_batch_size": 16, "dtype": "fp32", "dropout": 0.0}


@pytest.fixture
def finetuning(checkpoint, tmp_path):
    """Return a function from data files and other fields to a recipe of fine-tuning."""

    def make(train, dev=None, *, task="classification", **changes):
        files = {"train": (train,), "dev": (dev,) if dev else ()}
        fields = {"checkpoint": checkpoint, "run_dir": tmp_path / "run", **LEARN, **files, **changes}
        return FinetuneRecipe(task=task, **fields)

    return make
