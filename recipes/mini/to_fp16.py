"""Convert a checkpoint to 16-bit weights, which halves its size.

    python -m recipes.mini.to_fp16 build/mini/bertline-mini/checkpoint build/mini/fp16/bertline-mini

Fine-tuning starts from these weights, so that it can be repeated with the shipped checkpoint. Shipped students are
exported from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from tasks.embedding import EmbeddingSettings
from training.checkpoint.reader import load_model
from training.checkpoint.sentence_transformers import load_embedder
from training.checkpoint.task_card import read_task_card
from training.checkpoint.writer import save_checkpoint
from training.command_line.command import command, parse
from training.reports.model_card import describe_checkpoint


def halve(checkpoint: Path, out: Path) -> None:
    """Write a checkpoint with float16 weights, unless it exists.

    Raises:
        ValueError: if Bertline did not train `checkpoint`, or `out` exists and comes from another checkpoint.
    """
    card = read_task_card(checkpoint)
    if card is None:
        raise ValueError(f"Bertline did not train `{checkpoint}`: no task.json")
    if out.exists():
        if read_task_card(out) != card:
            raise ValueError(f"`{out}` does not come from `{checkpoint}`; remove it to make it again")
        return
    if isinstance(card.settings, EmbeddingSettings):
        model = load_embedder(checkpoint, card.settings)
    else:
        model = load_model(checkpoint, card.task)
    model = model.half()
    readme = describe_checkpoint(model, tokenizer_from=checkpoint, card=card)
    save_checkpoint(out, model, tokenizer_from=checkpoint, card=card, readme=readme)


@dataclass(frozen=True, kw_only=True)
class HalfArguments:
    """Convert a checkpoint to 16-bit weights."""

    checkpoint: Annotated[Path, tyro.conf.Positional]
    """Checkpoint that Bertline trained."""
    out: Annotated[Path, tyro.conf.Positional]
    """Directory to write."""


@command
def main() -> None:
    """Command line."""
    arguments = parse(HalfArguments, "recipes.mini.to_fp16", __doc__)
    halve(arguments.checkpoint, arguments.out)
    print(f"checkpoint -> {arguments.out}")


if __name__ == "__main__":
    main()
