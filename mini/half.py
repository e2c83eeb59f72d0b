"""A checkpoint with its weights in 16 bits: half the size to keep.

    python -m mini.half build/mini/bertline-mini/checkpoint build/mini/fp16/bertline-mini

What is fine-tuned starts from these weights, so that anybody who has them can repeat it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from training.checkpoint import load_model, read_task_card, save_checkpoint
from training.command import command


def halve(checkpoint: Path, out: Path) -> None:
    """Write a checkpoint of ours with float16 weights.

    Raises:
        ValueError: when `out` exists, or there is no checkpoint of ours.
    """
    card = read_task_card(checkpoint)
    if card is None:
        raise ValueError(f"checkpoint `{checkpoint}` has no task.json: it is none of ours")
    model = load_model(checkpoint, card.task).half()
    save_checkpoint(out, model, tokenizer_from=checkpoint, card=card)


@command
def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m mini.half", description="Write a checkpoint in 16 bits.")
    parser.add_argument("checkpoint", type=Path, help="a checkpoint of ours")
    parser.add_argument("out", type=Path, help="directory to write")
    arguments = parser.parse_args()
    halve(arguments.checkpoint, arguments.out)
    print(f"checkpoint -> {arguments.out}")


if __name__ == "__main__":
    main()
