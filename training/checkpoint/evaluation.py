"""Load the task of a checkpoint and its network, ready to run."""

from __future__ import annotations

from pathlib import Path

import torch

from tasks import AnyTask, create_task
from tasks.batching import RunModel
from tasks.embedding import Embedding
from training.checkpoint.reader import load_model, load_tokenizer, read_config
from training.checkpoint.sentence_transformers import MODULES_FILE, checkpoint_directory, load_embedder
from training.checkpoint.task_card import read_task_card
from training.checkpoint.task_inference import read_checkpoint_task
from training.model.run import torch_run


def load_for_evaluation(checkpoint: Path) -> tuple[AnyTask, RunModel]:
    """Load the task of a checkpoint and its network, ready to run.

    Raises:
        ValueError: if the checkpoint states no task, or its network does not fit the task.
    """
    task = _read_task(checkpoint)
    if task.network_task == Embedding.name:
        model = load_embedder(checkpoint, task.settings)
    else:
        model = load_model(checkpoint_directory(checkpoint), task.network_task)
    if task.settings.max_seq_length > (num_positions := model.config.num_positions):
        raise ValueError(
            f"`{checkpoint}` has {num_positions} positions, too few for the max_seq_length "
            f"`{task.settings.max_seq_length}` of its task.json"
        )
    return task, torch_run(model, task, "cuda" if torch.cuda.is_available() else "cpu")


def _read_task(checkpoint: Path) -> AnyTask:
    """Return the task of a checkpoint: that of its task card, or of its modules."""
    if card := read_task_card(checkpoint):
        return create_task(card.task, load_tokenizer(checkpoint), card.settings)
    if not (checkpoint / MODULES_FILE).is_file():
        read_config(checkpoint)  # raises if it is no checkpoint
        raise ValueError(f"checkpoint `{checkpoint}` has no task.json; fine-tune it first")
    return read_checkpoint_task(checkpoint).task
