"""OpenVINO, the engine for CPUs that competes with ONNX Runtime: its target, and how it runs a graph."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

from export.storage import Graph
from export.variant import CPU_FLOATS_ONLY, GraphVariant, Target
from tasks.batching import RunModel
from tasks.bundle.graph_file import has_positions, read_graph_file
from tasks.bundle.manifest import Execution
from tasks.bundle.openvino_graph import OpenVINOGraph
from tasks.bundle.providers import OPENVINO, check_openvino

EngineName = Literal["auto", "onnxruntime", "openvino"]
RIVALS = {
    "openvino": Target(
        name="cpu",
        provider=OPENVINO,
        batch_tokens=(128, 256, 512, 1024),
        default_batch_tokens=512,
        matmul_precisions={"fp32": ("fp32",), "int8": ("static int8",)},
        unsupported={"fp16": CPU_FLOATS_ONLY},
        variant=GraphVariant(standard=True),
        needs_vnni=True,
        has_bf16=True,
    )
}
"""Targets of other engines than ONNX Runtime, by engine."""


def rival_run(model: str | Path | Graph, execution: Execution) -> RunModel:
    """Return a function that runs a graph in another engine than ONNX Runtime.

    Raises:
        ValueError: if the engine is not installed, does not start or cannot load the graph.
    """
    check_openvino()
    try:
        content = model.whole().SerializeToString() if isinstance(model, Graph) else Path(model)
        graph = OpenVINOGraph(content, execution, max_length=_num_positions(model))
    except (ValueError, OSError) as error:
        raise load_error(model, str(error)) from error
    return partial(graph.run, graph.outputs)


def _num_positions(model: str | Path | Graph) -> int | None:
    """Return the longest sequence of a graph; None without a table of positions."""
    if isinstance(model, Graph):
        rows = (item.dims[0] for item in model.proto.graph.initializer if has_positions(item.name))
        return min(rows, default=None)
    return read_graph_file(Path(model)).num_positions


def load_error(model: str | Path | Graph, reason: str) -> ValueError:
    """Return the error for a graph that an engine cannot load."""
    named = "" if isinstance(model, Graph) else f" `{model}`"
    return ValueError(f"cannot load graph{named}: {reason}")
