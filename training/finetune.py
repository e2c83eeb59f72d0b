"""Fine-tune a checkpoint on labelled data of one of the tasks (section 3.2 of the paper).

    python -m training.finetune classification --checkpoint runs/mini/checkpoint --train a.tsv --dev b.tsv --run-dir a
    python -m training.finetune spans --checkpoint runs/mini/checkpoint --train a.json --dev b.json --run-dir b

The checkpoint may be ours or any Hugging Face directory of a supported encoder. The same command resumes.
"""

from __future__ import annotations

from dataclasses import replace

from training.checkpoint.sentence_transformers import checkpoint_directory
from training.command_line.command import command, parse
from training.finetuning.recipe import FinetuneRecipe
from training.finetuning.run import finetune
from training.loop.distributed import resolve_on_all, world


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
