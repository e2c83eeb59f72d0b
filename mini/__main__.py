"""Make bertline-mini from the data: pretrain, fine-tune for every task, export, and score. Hours on two cores.

    python -m mini --data DATA --out build/mini

Every stage is one of the commands that a user runs, and is shown before it runs. What is there already is not made
again: the same command goes on where it was. docs/results.md tells what data there have to be, and what came out.
"""

from __future__ import annotations

import os

from demo.stage import run_stage
from mini.line import ABLATIONS, NAME, Arguments, Line
from mini.ship import MODELS
from training.command import command, parse


@command
def main() -> None:
    """Command line."""
    arguments = parse(Arguments, "mini", __doc__)
    kept = MODELS / NAME
    if set(arguments.only) - {ABLATIONS} and not arguments.pretrained and kept.exists():
        raise ValueError(
            f"--only would begin with new pretraining, and what else is kept is of `{kept}`: --pretrained {kept}"
        )
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    stages = list(Line(arguments).stages())
    for number, stage in enumerate(stages, start=1):
        if stage.result and stage.result.exists():
            print(f"[{number}/{len(stages)}] {stage.title}: there is {stage.result}", flush=True)
        else:
            run_stage(number, len(stages), stage.title, stage.arguments)


if __name__ == "__main__":
    main()
