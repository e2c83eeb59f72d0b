"""A checkpoint with its weights in 16 bits: half the size to keep.

    python -m mini.half build/mini/bertline-mini/checkpoint build/mini/fp16/bertline-mini

What is fine-tuned starts from these weights, so that anybody who has them can repeat it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from training.checkpoint import load_model
from training.checkpoint_writer import save_checkpoint
from training.command import command, parse
from training.task_card import read_task_card


def halve(checkpoint: Path, out: Path) -> None:
    """Write a checkpoint of ours with float16 weights, if it is not there already.

    Raises:
        ValueError: when `out` is something else, or there is no checkpoint of ours.
    """
    card = read_task_card(checkpoint)
    if card is None:
        raise ValueError(f"checkpoint `{checkpoint}` has no task.json: it is none of ours")
    if out.exists():
        if read_task_card(out) != card:
            raise ValueError(f"`{out}` does not come from `{checkpoint}`; remove it to make it anew")
        return
    model = load_model(checkpoint, card.task).half()
    save_checkpoint(out, model, tokenizer_from=checkpoint, card=card)


@dataclass(frozen=True, kw_only=True)
class HalfArguments:
    """Write a checkpoint in 16 bits."""

    checkpoint: Annotated[Path, tyro.conf.Positional]
    """One of ours."""
    out: Annotated[Path, tyro.conf.Positional]
    """Directory to write."""


@command
def main() -> None:
    """Command line."""
    arguments = parse(HalfArguments, "mini.half", __doc__)
    halve(arguments.checkpoint, arguments.out)
    print(f"checkpoint -> {arguments.out}")


if __name__ == "__main__":
    main()
