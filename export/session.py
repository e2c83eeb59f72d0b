"""Run a graph in ONNX Runtime.

from export import ort_run
run = ort_run("models/demo/1/model.onnx")
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime

from export.storage import Graph
from tasks.batching import Run
from tasks.cpus import available_cpus
from tasks.manifest import Execution

_ERRORS_ONLY = 3


def on_all_cores(execution: Execution) -> Execution:
    """The same for one batch at a time: outputs are to come soon, as nothing is timed."""
    return replace(execution, num_threads=available_cpus())


def ort_run(model: str | Path | Graph, *, execution: Execution | None = None) -> Run:
    """A function that runs the graph on padded arrays, as `training.evaluate.torch_run` runs the network.

    Args:
        model: the graph's file, or a graph in memory, whose weights are not copied.
        execution: how to run it, as a manifest says; None for ONNX Runtime's own ways on one thread.

    Raises:
        ValueError: naming the file, when it is missing or not a graph that ONNX Runtime can run.
    """
    execution = execution or Execution()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    for name, value in execution.session_options.items():
        setattr(options, name, value)
    for name, value in execution.session_config.items():
        options.add_session_config_entry(name, value)
    if isinstance(model, Graph):
        values = map(onnxruntime.OrtValue.ortvalue_from_numpy, model.weights.values())
        options.add_external_initializers(list(model.weights), list(values))
    source = model.proto.SerializeToString() if isinstance(model, Graph) else str(model)
    try:
        session = onnxruntime.InferenceSession(
            source,
            options,
            providers=[execution.provider],
            disabled_optimizers=list(execution.disabled_optimizers),
        )
    except Exception as error:  # ONNX Runtime has an exception class for each status, without a common base
        named = "" if isinstance(model, Graph) else f" `{model}`"
        raise ValueError(f"cannot load graph{named}: {str(error).splitlines()[0]}") from error
    names = [output.name for output in session.get_outputs()]

    def run(arrays: dict[str, np.ndarray], kept: object = model) -> dict[str, np.ndarray]:  # weights are read there
        return dict(zip(names, session.run(names, arrays), strict=True))

    return run
