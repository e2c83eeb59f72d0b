"""Run a checkpoint as the server runs its graph: its task, its network from padded arrays to outputs, predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tasks import AnyTask
from tasks.batching import RunModel, predict
from tasks.embedding import Embedding
from training.checkpoint.reader import load_model, read_config
from training.checkpoint.sentence_transformers import MODULES_FILE, checkpoint_directory, load_embedder
from training.checkpoint.task_card import TASK_FILE
from training.checkpoint.task_inference import read_checkpoint_task
from training.command_line.progress_bar import ProgressBar
from training.model.heads import BertModel
from training.model.vectors import with_task_outputs


def load_for_evaluation(checkpoint: Path) -> tuple[AnyTask, RunModel]:
    """Load the task of a checkpoint and its network, ready to run.

    Raises:
        ValueError: if the checkpoint states no task, or its network does not fit the task.
    """
    if not any((checkpoint / file).is_file() for file in (TASK_FILE, MODULES_FILE)):
        read_config(checkpoint)  # raises if it is no checkpoint
        raise ValueError(f"checkpoint `{checkpoint}` has no {TASK_FILE}; fine-tune it first")
    task = read_checkpoint_task(checkpoint).task
    return task, torch_run(load_network(checkpoint, task), task, "cuda" if torch.cuda.is_available() else "cpu")


def load_network(checkpoint: Path, task: AnyTask) -> BertModel:
    """Load the network of a checkpoint for its task."""
    if task.network_task == Embedding.name:
        return load_embedder(checkpoint, task.settings)
    return load_model(checkpoint_directory(checkpoint), task.network_task)


def torch_run(model: nn.Module, task: AnyTask, device: torch.device | str = "cpu") -> RunModel:
    """Return a function from padded arrays to the outputs of a network, with the names of its ONNX graph."""
    network = with_task_outputs(model, task.settings)
    network.eval().to(device)

    @torch.inference_mode()
    def run(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        inputs: dict[str, Any] = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        return {name: output.float().cpu().numpy() for name, output in network(**inputs).items()}

    return run


def predict_with_progress(task: AnyTask, examples: Sequence[Any], run: RunModel) -> list[Any]:
    """Predict as `tasks.batching.predict`, with a progress bar."""
    with ProgressBar("evaluate", unit="example", total=len(examples)) as bar:
        return predict(task, examples, run, chunk_size=task.chunk_size, progress=bar.update)
