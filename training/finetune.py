"""Fine-tune a checkpoint on labelled data of one of the tasks (section 3.2 of the paper).

    python -m training.finetune classification --checkpoint runs/mini/checkpoint --train a.tsv --dev b.tsv --run-dir a
    python -m training.finetune spans --checkpoint runs/mini/checkpoint --train a.json --dev b.json --run-dir b

The checkpoint may be ours or any Hugging Face directory of a supported encoder. The same command resumes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from training.command import command, parse
from training.data.descriptions import are_all_pairs
from training.finetuning.data import encode_data, finetuning_batches, read_data, report_data
from training.finetuning.network import create_network
from training.finetuning.recipe import FinetuneRecipe, with_learning_rate
from training.finetuning.scores import score_and_write, train_network
from training.hub import resolve_on_all
from training.loop.distributed import World, world
from training.loop.recipe import RecipeRecord
from training.loop.run_directory import RunDirectory
from training.objectives.registry import OBJECTIVES
from training.provenance import PATH_FIELDS, input_digests, provenance, training_extent, training_machine
from training.sentence_transformers import checkpoint_directory


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


@command
def main() -> None:
    """Command line."""
    recipe = parse(FinetuneRecipe, "training.finetune", __doc__)
    with world() as peers:
        recipe = replace(recipe, checkpoint=checkpoint_directory(resolve_on_all(recipe.checkpoint, peers)))
        checkpoint = finetune(recipe, peers)
        if peers.is_main:
            print(f"checkpoint -> {checkpoint}")


if __name__ == "__main__":
    main()
