"""Run a graph in ONNX Runtime on the CPU.

from export import ort_run
run = ort_run("models/demo/1/model.onnx", disabled_optimizers=("SkipLayerNormFusion",))
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from tasks.batching import Run

_ERRORS_ONLY = 3


def ort_run(model_path: str | Path, *, disabled_optimizers: Sequence[str] = (), num_threads: int = 1) -> Run:
    """A function that runs a graph on padded arrays, as `training.evaluate.torch_run` runs the network.

    Args:
        disabled_optimizers: load-time optimisers of ONNX Runtime to switch off (`Execution.disabled_optimizers`).
        num_threads: threads inside an operator.

    Raises:
        ValueError: naming the file, when it is missing or not a graph that ONNX Runtime can run.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    try:
        session = onnxruntime.InferenceSession(
            str(model_path),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=list(disabled_optimizers),
        )
    except Exception as error:  # ONNX Runtime has an exception class for each status, without a common base
        raise ValueError(f"cannot load graph `{model_path}`: {str(error).splitlines()[0]}") from error
    names = [output.name for output in session.get_outputs()]

    def run(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(names, arrays), strict=True))

    return run
