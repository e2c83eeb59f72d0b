"""What a run that is done leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tasks.machine import describe_machine
from training.checkpoint import TaskCard, save_checkpoint
from training.loop.distributed import World
from training.loop.run_directory import RunDirectory
from training.model.heads import BertModel
from training.reports.plot import plot_run


def made_with(world: World) -> dict[str, Any]:
    """What trained the weights of a run, or at least their last steps, for its task card."""
    gpu = {"gpu": torch.cuda.get_device_name(world.device), "gpus": world.size} if world.device.type == "cuda" else {}
    return {"torch": torch.__version__, "machine": describe_machine() | gpu}


def write_result(run: RunDirectory, model: BertModel, *, tokenizer_from: Path, card: TaskCard) -> None:
    """Write curves and, last, the checkpoint, which makes the run finished; the states are no longer needed."""
    plot_run(run.path)
    save_checkpoint(run.checkpoint_path, model.cpu(), tokenizer_from=tokenizer_from, card=card)
    run.drop_states()
