"""Session of one model, in the engine of its manifest: ONNX Runtime or OpenVINO."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from serving.core.onnx_runtime import OnnxRuntimeGraph
from tasks.features import INPUT_NAMES
from tasks.first_line import first_line
from tasks.manifest import Execution
from tasks.model_directory import ModelDirectory
from tasks.openvino_graph import OpenVINOGraph

Arrays = dict[str, np.ndarray]


class Run(Protocol):
    """Run of a graph that another thread can abort, even before it begins."""

    def abort(self) -> None:
        """End the run with an exception after its current operator."""


class Graph(Protocol):
    """Graph that an engine has loaded; `run` is thread-safe."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def new_run(self) -> Any:
        """Return a handle for one call of `run`."""

    def run(self, names: Sequence[str], arrays: Arrays, run: Any) -> Arrays:
        """Return outputs by name."""

    def release_memory(self, arrays: Arrays) -> None:
        """Free what larger batches than this one took. No other run may be active."""


class Session:
    """Graph with the inputs and outputs of its manifest; `run` is thread-safe."""

    def __init__(
        self,
        directory: ModelDirectory,
        output_names: tuple[str, ...],
        execution: Execution,
        num_cores: int | None = None,
    ) -> None:
        """Load the graph.

        Args:
            directory: the model directory.
            output_names: outputs of the graph to compute.
            execution: engine, execution provider, threads and options.
            num_cores: cores of all runs together; None for those of the machine.

        Raises:
            ValueError: when the engine or execution provider is missing, the graph cannot be loaded, or its inputs or
                outputs differ from the manifest. The message names the file.
        """
        self.path = directory.graph_path(execution)
        self._graph = _load(directory, execution, num_cores)
        inputs, outputs = self._graph.inputs, self._graph.outputs
        _compare(self.path, "inputs", inputs, directory.manifest.inputs)
        _compare(self.path, "outputs", outputs, directory.manifest.outputs)
        if unknown := sorted(set(inputs) - set(INPUT_NAMES)):
            raise ValueError(f"`{self.path}` has an unknown input `{unknown[0]}`; allowed: {', '.join(INPUT_NAMES)}")
        if missing := sorted(set(output_names) - set(outputs)):
            raise ValueError(
                f"`{self.path}` has no output `{missing[0]}`, which its task needs; export the model again"
            )
        self._output_names = list(output_names)

    def new_run(self) -> Run:
        """Return a handle for one call of `run`."""
        run: Run = self._graph.new_run()
        return run

    def run(self, arrays: Arrays, run: Run | None = None) -> Arrays:
        """Run the graph on one batch.

        Args:
            arrays: padded inputs by name, each [batch, length] int32.
            run: handle to abort the run with.

        Returns:
            Outputs by name.
        """
        return self._graph.run(self._output_names, self._feed(arrays), run or self.new_run())

    def release_memory(self, arrays: Arrays) -> None:
        """Free what larger batches than this one took. No other run may be active."""
        self._graph.release_memory(self._feed(arrays))

    def _feed(self, arrays: Arrays) -> Arrays:
        return {name: arrays[name] for name in self._graph.inputs}


def _load(directory: ModelDirectory, execution: Execution, num_cores: int | None) -> Graph:
    path = directory.graph_path(execution)
    try:
        if execution.engine == "openvino":
            max_length = directory.manifest.settings.max_seq_length
            return OpenVINOGraph(path, execution, num_cores, max_length=max_length)
        return OnnxRuntimeGraph(path, directory.weight_files[path.name], execution)
    except OSError:
        raise
    except Exception as error:  # ONNX Runtime's own errors share no base class
        raise ValueError(f"cannot load `{path}`: {first_line(error)}") from error


def _compare(path: Path, kind: str, found: tuple[str, ...], expected: tuple[str, ...]) -> None:
    if sorted(found) != sorted(expected):
        raise ValueError(
            f"`{path}` has the {kind} {', '.join(found)}, but its manifest names {', '.join(expected)}; "
            "export the model again"
        )
