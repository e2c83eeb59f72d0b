"""Make bertline-mini from the data: pretrain, fine-tune for every task, export, and score. Hours on two cores.

    python -m mini --data DATA --out build/mini

Every stage is one of the commands that a user runs, and is shown before it runs. What is there already is not made
again: the same command goes on where it was. docs/results.md tells what data there have to be, and what came out.
"""

from __future__ import annotations

import os
from pathlib import Path

from demo.stage import run_stage
from mini.line import NAME, Arguments, Line
from mini.ship import MODELS
from training.checkpoint import checkpoint_digest
from training.command import command, parse


@command
def main() -> None:
    """Command line."""
    arguments = parse(Arguments, "mini", __doc__)
    if arguments.only:
        _check_same(arguments.pretrained, MODELS / NAME)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    line = Line(arguments)
    if line.pretrained.exists():
        line.scored()  # or it says what has to go, before hours of work
    stages = list(line.stages())
    for number, stage in enumerate(stages, start=1):
        if stage.result and stage.result.exists():
            print(f"[{number}/{len(stages)}] {stage.title}: there is {stage.result}", flush=True)
        else:
            run_stage(number, len(stages), stage.title, stage.arguments)


def _check_same(pretrained: Path | None, kept: Path) -> None:
    """Whether a part of the models can be made anew from a checkpoint: the others stay those of what is kept."""
    if kept.exists() and (not pretrained or checkpoint_digest(pretrained) != checkpoint_digest(kept)):
        raise ValueError(f"--only leaves models of `{kept}` beside what is made anew: --pretrained {kept}")


if __name__ == "__main__":
    main()
