"""Distil a small network from a large one: the student learns the outputs of a teacher (Hinton et al. 2015).

    python -m training.distill embedding --teacher models/teacher --checkpoint runs/mini/checkpoint \\
        --train texts.txt --dev dev.tsv --run-dir runs/student
    python -m training.distill classification --teacher runs/large/checkpoint --checkpoint runs/mini/checkpoint \\
        --train a.tsv --unlabelled texts.txt --dev b.tsv --run-dir runs/student

The first word is the task: embedding, for vectors of texts, whose flags `python -m training.distill embedding --help`
lists, or one of those of training.finetune. The outputs of the teacher are computed once, and kept on disk. The result
is a checkpoint like those of training.finetune and training.contrastive. The same command resumes.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from tasks.embedding import Embedding
from training.command_line.command import command, parse
from training.distillation.tasks import TaskDistillRecipe, distil_task, with_directories
from training.distillation.vectors import VectorDistillRecipe, distil_vectors
from training.finetuning.embedding_run import parse_embedding_recipe
from training.loop.distributed import resolve_on_all, world
from training.objectives.distillation import MATCHINGS

MODULE = "training.distill"


def recipe_from_arguments() -> VectorDistillRecipe | TaskDistillRecipe:
    """Parse the recipe of the task that the first word names."""
    word = next(iter(sys.argv[1:]), "-")
    if word == Embedding.name:
        return parse_embedding_recipe(VectorDistillRecipe, MODULE, __doc__)
    if not word.startswith("-") and word not in MATCHINGS:
        raise ValueError(f"unknown task: `{word}` (one of: {Embedding.name}, {', '.join(MATCHINGS)})")
    return parse(TaskDistillRecipe, MODULE, __doc__)


@command
def main() -> None:
    """Command line."""
    recipe = recipe_from_arguments()
    with world() as peers:
        if isinstance(recipe, VectorDistillRecipe):
            checkpoint, *teachers = (resolve_on_all(path, peers) for path in (recipe.checkpoint, *recipe.teacher))
            result = distil_vectors(replace(recipe, checkpoint=checkpoint, teacher=tuple(teachers)), peers)
        else:
            result = distil_task(with_directories(recipe, peers), peers)
        if peers.is_main:
            print(f"checkpoint -> {result}")


if __name__ == "__main__":
    main()
