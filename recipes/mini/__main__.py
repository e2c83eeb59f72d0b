"""Make bertline-mini and the shipped models from the data: pretrain, fine-tune, distil, export, and score.

    python -m recipes.mini --data DATA --out build/mini

bertline-mini takes hours on two cores. The students of the shipped models take minutes on a GPU, and days without one:
`--only` chooses tasks, and checkpoints in OUT/fp16 are kept, wherever they were trained. Every stage is a public
command, and is printed before it runs. Existing results are kept, so that the same command resumes an interrupted run.
docs/results.md lists the data and the results.
"""

from __future__ import annotations

import os
from pathlib import Path

from recipes.mini.pipeline import DATA, NAME, Arguments, Pipeline, Stage
from recipes.mini.publish import MODELS
from recipes.mini.tasks import is_distilled, task_names, task_of
from recipes.stage import run_stage
from training.checkpoint.weights import checkpoint_digest
from training.command_line.command import command, parse


@command
def main() -> None:
    """Command line."""
    arguments = parse(Arguments, "mini", __doc__)
    if arguments.pretrained or any(not is_distilled(name) for name in arguments.only):
        _check_same(arguments.pretrained, MODELS / NAME)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    pipeline = Pipeline(arguments)
    pipeline.scored()  # raises for outdated results, before hours of work
    stages = list(pipeline.stages())
    needed = {name: [*task_of(name).trainings()] for name in task_names()}
    unmade: list[str] = []
    for number, stage in enumerate(stages, start=1):
        if any(name in unmade for name in needed.get(stage.task, [stage.task])):
            unmade.append(stage.task)
        elif stage.result and stage.result.exists():
            print(f"[{number}/{len(stages)}] {stage.title}: exists at {stage.result}", flush=True)
        elif not _run(number, len(stages), stage):
            unmade.append(stage.task)
        elif stage.title == DATA:
            pipeline.scored()  # now for these data as well
    if unmade:
        raise ValueError(f"failed (see above): {', '.join(dict.fromkeys(unmade))}")


def _run(number: int, total: int, stage: Stage) -> bool:
    """Run a stage and return whether it succeeded. Stages of one task may fail, as other tasks do not need them.

    Raises:
        ValueError: if a stage fails that all tasks need.
    """
    try:
        run_stage(number, total, stage.title, stage.arguments)
    except ValueError as error:
        if not stage.task:
            raise
        print(f"{error}; continuing without {stage.task}", flush=True)
        return False
    return True


def _check_same(pretrained: Path | None, kept: Path) -> None:
    """Raise if only a part of the models would be made again, from another checkpoint than the shipped one."""
    if kept.exists() and (not pretrained or checkpoint_digest(pretrained) != checkpoint_digest(kept)):
        raise ValueError(
            f"the other fine-tuned models come from `{kept}`; start from the same checkpoint: --pretrained {kept}"
        )


if __name__ == "__main__":
    main()
