"""Run a graph in ONNX Runtime or OpenVINO.

from export import graph_run
run = graph_run("models/demo/1/model.onnx")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import version as library_version
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from export.storage import Graph
from tasks.batching import RunModel
from tasks.bundle.graph_file import has_positions, read_graph_file
from tasks.bundle.machine import available_cpus
from tasks.bundle.manifest import Execution
from tasks.bundle.openvino_graph import OpenVINOGraph
from tasks.bundle.providers import CPU, TENSORRT, check_installed, check_openvino, check_started, load_libraries


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
    if execution.engine == "openvino":
        return _openvino_run(model, execution)
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
    return library_version("openvino") if execution.engine == "openvino" else onnxruntime.__version__


def _openvino_run(model: str | Path | Graph, execution: Execution) -> RunModel:
    check_openvino()
    try:
        content = model.whole().SerializeToString() if isinstance(model, Graph) else Path(model)
        graph = OpenVINOGraph(content, execution, max_length=_num_positions(model))
    except (ValueError, OSError) as error:
        raise _load_error(model, str(error)) from error
    return partial(graph.run, graph.outputs)


def _num_positions(model: str | Path | Graph) -> int | None:
    """Return the longest sequence of a graph; None without a table of positions."""
    if isinstance(model, Graph):
        rows = (item.dims[0] for item in model.proto.graph.initializer if has_positions(item.name))
        return min(rows, default=None)
    return read_graph_file(Path(model)).num_positions


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
    try:
        session = onnxruntime.InferenceSession(
            _add_weights(options, model, execution, weights) if isinstance(model, Graph) else str(model),
            options,
            providers=execution.providers,
            disabled_optimizers=list(execution.disabled_optimizers),
            enable_fallback=0,  # fail instead of falling back to another provider
        )
    except MemoryError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        raise _load_error(model, (str(error) or type(error).__name__).splitlines()[0]) from error
    check_started(execution.provider, session.get_providers())
    return session


def _load_error(model: str | Path | Graph, reason: str) -> ValueError:
    named = "" if isinstance(model, Graph) else f" `{model}`"
    return ValueError(f"cannot load graph{named}: {reason}")


def _add_weights(
    options: onnxruntime.SessionOptions,
    graph: Graph,
    execution: Execution,
    weights: Mapping[str, onnxruntime.OrtValue],
) -> bytes:
    """Pass the weights to the session; return the serialised graph.

    TensorRT needs the weights inside the graph.
    """
    if execution.provider == TENSORRT:
        return graph.whole().SerializeToString()
    options.add_external_initializers(list(weights), list(weights.values()))
    if execution.provider == CPU:
        for name, value in weights.items():
            options.add_initializer(name, value)  # otherwise each session copies its weights
    return graph.proto.SerializeToString()
