"""Graph in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

from tasks.manifest import FATAL, Execution
from tasks.providers import CPU, CUDA, check_installed, check_started, load_libraries
from tasks.regular import read_regular


class OnnxRuntimeRun:
    """Run of a graph that another thread can abort, even before it begins."""

    def __init__(self) -> None:
        self.options = ort.RunOptions()
        self.options.log_severity_level = FATAL

    def abort(self) -> None:
        """End the run with an exception after its current operator."""
        self.options.terminate = True


class OnnxRuntimeGraph:
    """Session of ONNX Runtime; `run` is thread-safe."""

    new_run = OnnxRuntimeRun

    def __init__(self, path: Path, weight_files: Sequence[str], execution: Execution) -> None:
        """Load a graph.

        Args:
            path: path of the graph.
            weight_files: names of the files beside it that hold its weights.
            execution: execution provider, threads and options.

        Raises:
            ValueError: when the execution provider is not installed or does not start.
            Exception: of any class, when ONNX Runtime refuses the graph.
        """
        check_installed(execution.provider, ort.get_available_providers())
        load_libraries(execution.provider, ort.preload_dlls)
        options = ort.SessionOptions()
        execution.configure(options)
        weights = _weights(path, weight_files, execution, options)
        try:
            self._session = ort.InferenceSession(
                str(path),
                options,
                providers=execution.providers,
                disabled_optimizers=list(execution.disabled_optimizers),
                enable_fallback=0,  # otherwise it falls back to another provider with only a line on stdout
            )
        finally:
            del weights  # ONNX Runtime has copied them
        check_started(execution.provider, self._session.get_providers())
        self._provider = execution.provider
        self.inputs = tuple(item.name for item in self._session.get_inputs())
        """Names of the inputs."""
        self.outputs = tuple(item.name for item in self._session.get_outputs())
        """Names of the outputs."""

    def run(self, names: Sequence[str], arrays: dict[str, np.ndarray], run: OnnxRuntimeRun) -> dict[str, np.ndarray]:
        """Run the graph on one batch.

        Args:
            names: names of the outputs to return.
            arrays: inputs by name.
            run: handle to abort the run with.

        Returns:
            Outputs by name.
        """
        return dict(zip(names, self._session.run(names, arrays, run.options), strict=True))

    def release_memory(self, arrays: dict[str, np.ndarray]) -> None:
        """Run a batch on CPUs, after which ONNX Runtime frees the memory of earlier, larger ones; do nothing on GPUs.

        The first block stays, with the weights.
        """
        if self._provider == CPU:
            run = self.new_run()
            run.options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
            self.run(self.outputs[:1], arrays, run)


def _weights(path: Path, names: Sequence[str], execution: Execution, options: ort.SessionOptions) -> list[bytes]:
    """Read the external weight files of the graph and pass them to ONNX Runtime.

    ONNX Runtime itself would map the files into memory: a later write would change the outputs, and a truncated file
    would crash the process.

    Returns:
        The weights, to be kept alive until the session exists.
    """
    if execution.provider not in (CPU, CUDA):  # other providers read the files by name
        return []
    weights = [read_regular(path.parent / name) for name in names]
    if names:
        options.add_external_initializers_from_files_in_memory(list(names), weights, list(map(len, weights)))
    return weights
