"""Fine-tuning of one run, for `training.finetune`, `training.grid` and `training.distill`."""

from __future__ import annotations

from pathlib import Path

import torch

from training.finetuning.data import encode_data, finetuning_batches, read_data, report_data
from training.finetuning.descriptions import are_all_pairs
from training.finetuning.network import create_network
from training.finetuning.recipe import FinetuneRecipe, with_learning_rate
from training.finetuning.scores import score_and_write, train_network
from training.loop.distributed import World
from training.loop.recipe import RecipeRecord
from training.loop.run_directory import RunDirectory
from training.objectives.registry import OBJECTIVES
from training.reports.provenance import PATH_FIELDS, input_digests, provenance, training_extent, training_machine


def finetune(recipe: FinetuneRecipe, world: World) -> Path:
    """Fine-tune, or resume.

    Returns:
        The checkpoint directory.

    Raises:
        ValueError: if data or checkpoint cannot be used, or the run was started with another recipe.
    """
    with RunDirectory(recipe.run_dir, world) as run:
        return _finetune(with_learning_rate(recipe, run), run)


def _finetune(recipe: FinetuneRecipe, run: RunDirectory) -> Path:
    data = read_data(recipe)
    digests = input_digests(recipe.checkpoint, recipe.train, recipe.dev)
    if not run.begin(RecipeRecord(recipe, digests, paths=PATH_FIELDS)):
        return run.checkpoint_path
    torch.manual_seed(recipe.seed)
    model = create_network(recipe, data.task)
    encoded = encode_data(recipe, data)
    cuts = report_data(recipe, data, encoded) if run.world.is_main else {}
    batches = finetuning_batches(recipe, data.task, encoded.train, OBJECTIVES[recipe.task])
    progress = train_network(recipe, run, data, model, batches)
    if run.world.is_main:
        origin = provenance(
            recipe.checkpoint, (*recipe.train, *recipe.dev), recipe, digests, text_pairs=are_all_pairs(data.train)
        )
        origin |= training_extent(progress, batches.num_batches(0)) | training_machine(run.world) | {"cuts": cuts}
        score_and_write(recipe, run, data, model, origin=origin)
    run.world.barrier()
    return run.checkpoint_path
