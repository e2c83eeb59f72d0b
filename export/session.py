"""Run a graph in ONNX Runtime, or in another engine (`export.engines`).

from export import graph_run
run = graph_run("models/demo/1/model.onnx")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version as library_version
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from export.engines import load_error, rival_run
from export.storage import Graph
from tasks.batching import RunModel
from tasks.bundle.machine import available_cpus
from tasks.bundle.manifest import Execution
from tasks.bundle.providers import CPU, TENSORRT, check_installed, check_started, load_libraries


def on_all_cores(execution: Execution) -> Execution:
    """Return settings that use all cores for one batch, for runs that are not timed."""
    return replace(execution, num_threads=available_cpus())


def graph_run(model: str | Path | Graph, *, execution: Execution | None = None) -> RunModel:
    """Return a function that runs a graph on padded arrays, as `training.checkpoint.evaluation.torch_run` a network.

    Args:
        model: the graph's file, or a graph in memory, whose weights are not copied.
        execution: settings from a manifest; None for the defaults of ONNX Runtime, on one thread.

    Raises:
        ValueError: if the graph is missing or the engine cannot run it, or the engine or execution provider is not
            installed or does not start.
    """
    execution = execution or Execution()
    if execution.engine != "onnxruntime":
        return rival_run(model, execution)
    arrays = model.weights if isinstance(model, Graph) else {}
    weights = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}  # no copy
    session = _session(model, execution, weights)
    names = [output.name for output in session.get_outputs()]

    # `keep_alive`: the session reads the weights from the graph's arrays.
    def run(arrays: dict[str, np.ndarray], keep_alive: object = weights) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(names, arrays), strict=True))

    return run


def engine_version(execution: Execution) -> str:
    """Return the version of the library that runs a graph."""
    return onnxruntime.__version__ if execution.engine == "onnxruntime" else library_version(execution.engine)


def check_provider(execution: Execution) -> None:
    """Raise if an engine or execution provider is not installed or does not start.

    Raises:
        ValueError: naming it and the package to install.
    """
    if execution.provider == CPU:
        return
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
    opsets = [helper.make_opsetid("", 20)]
    graph_run(Graph(helper.make_model(graph, opset_imports=opsets, ir_version=10), {}), execution=execution)


def is_available(provider: str) -> bool:
    """Return whether an execution provider is installed and starts."""
    try:
        check_provider(Execution(provider=provider))
    except ValueError:
        return False
    return True


def _session(
    model: str | Path | Graph, execution: Execution, weights: Mapping[str, onnxruntime.OrtValue]
) -> onnxruntime.InferenceSession:
    """Create a session.

    Args:
        weights: weights of a graph in memory, which must live as long as the session.
    """
    check_installed(execution.provider, onnxruntime.get_available_providers())
    load_libraries(execution.provider, onnxruntime.preload_dlls)
    options = onnxruntime.SessionOptions()
    execution.configure(options)
    content: str | bytes = str(model)
    if isinstance(model, Graph) and execution.provider == TENSORRT:  # it needs the weights inside the graph
        content = model.whole().SerializeToString()
    elif isinstance(model, Graph):
        content = model.proto.SerializeToString()
        options.add_external_initializers(list(weights), list(weights.values()))
        for name, value in weights.items() if execution.provider == CPU else ():
            options.add_initializer(name, value)  # otherwise each session copies its weights
    try:
        session = onnxruntime.InferenceSession(
            content,
            options,
            providers=execution.providers,
            disabled_optimizers=list(execution.disabled_optimizers),
            enable_fallback=0,  # fail instead of falling back to another provider
        )
    except MemoryError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        raise load_error(model, (str(error) or type(error).__name__).splitlines()[0]) from error
    check_started(execution.provider, session.get_providers())
    return session
