"""Evaluate a checkpoint on a dev set: predictions by the code that also stands in the server, scores, baselines.

python -m training.evaluate runs/sst2/checkpoint --data dev.tsv
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tasks.batching import Run
from training.model import BertModel


def torch_run(model: BertModel, device: torch.device | str = "cpu") -> Run:
    """A function that runs the network on padded arrays, as ONNX Runtime runs its graph."""
    model.eval().to(device)

    @torch.inference_mode()
    def run(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        inputs: dict[str, Any] = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        return {name: output.float().cpu().numpy() for name, output in model(**inputs).items()}

    return run
