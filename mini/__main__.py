"""Make bertline-mini from the data: pretrain, fine-tune for every task, export, and score. Hours on two cores.

    python -m mini --data DATA --out build/mini

Every stage is one of the commands that a user runs, and is shown before it runs. What is there already is not made
again: the same command goes on where it was. docs/results.md tells what data there have to be, and what came out.
"""

from __future__ import annotations

import os
from pathlib import Path

from demo.stage import run_stage
from mini.line import DATA, NAME, Arguments, Line, Stage
from mini.ship import MODELS
from training.command import command, parse
from training.weights import checkpoint_digest


@command
def main() -> None:
    """Command line."""
    arguments = parse(Arguments, "mini", __doc__)
    if arguments.only or arguments.pretrained:
        _check_same(arguments.pretrained, MODELS / NAME)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    line = Line(arguments)
    line.scored()  # or it says what has to go, before hours of work
    stages = list(line.stages())
    unmade: list[str] = []
    for number, stage in enumerate(stages, start=1):
        if any(name in unmade for name in line.trained(stage.task)):
            unmade.append(stage.task)
        elif stage.result and stage.result.exists():
            print(f"[{number}/{len(stages)}] {stage.title}: there is {stage.result}", flush=True)
        elif not _run(number, len(stages), stage):
            unmade.append(stage.task)
        elif stage.title == DATA:
            line.scored()  # of these data, too
    if unmade:
        raise ValueError(f"not made, for reasons that stand above: {', '.join(dict.fromkeys(unmade))}")


def _run(number: int, total: int, stage: Stage) -> bool:
    """Whether a stage succeeds. One of a task may fail: the other tasks do not need it.

    Raises:
        ValueError: when another one fails.
    """
    try:
        run_stage(number, total, stage.title, stage.arguments)
    except ValueError as error:
        if not stage.task:
            raise
        print(f"{error}; going on without {stage.task}", flush=True)
        return False
    return True


def _check_same(pretrained: Path | None, kept: Path) -> None:
    """Whether a part of the models can be made anew from a checkpoint: the others stay those of what is kept, and so do
    the curves of pretraining, and what cards tell of it."""
    if kept.exists() and (not pretrained or checkpoint_digest(pretrained) != checkpoint_digest(kept)):
        raise ValueError(
            f"`{kept}` and what comes of it stay beside what is made anew, so go on from it: --pretrained {kept}"
        )


if __name__ == "__main__":
    main()
