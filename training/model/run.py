"""Run a network as the server runs its graph: padded arrays in, outputs by name out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from tasks import AnyTask
from tasks.batching import RunModel, predict
from training.command_line.progress_bar import ProgressBar
from training.model.vectors import with_task_outputs


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
