"""Session of one model, in the engine of its manifest: ONNX Runtime, or OpenVINO (`tasks.bundle.openvino_graph`)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from serving.core.job import AbortableRun
from tasks.base import first_line
from tasks.bundle.machine import int8_sums_overflow
from tasks.bundle.manifest import FATAL, Execution, Manifest
from tasks.bundle.model_directory import ModelDirectory
from tasks.bundle.openvino_graph import OpenVINOGraph
from tasks.bundle.providers import CPU, CUDA, check_installed, check_started, has_openvino, load_libraries
from tasks.features import INPUT_NAMES
from tasks.text.json_files import read_regular

Arrays = dict[str, np.ndarray]

logger = logging.getLogger(__name__)
_lock = threading.Lock()


def engine_versions() -> dict[str, str]:
    """Return the versions of the installed engines by name."""
    found = {"onnxruntime": ort.__version__}  # its distribution has one of several names
    return found | ({"openvino": version("openvino")} if has_openvino() else {})


def choose_execution(manifest: Manifest, path: Path, *, engine_fallback: bool) -> Execution:
    """Return the execution settings of a model, for an engine that computes here what was evaluated.

    Args:
        manifest: manifest of the model.
        path: its directory, for messages.
        engine_fallback: without OpenVINO, take the graph for ONNX Runtime of a directory that has both.

    Raises:
        ValueError: when the engine is missing or its int8 sums overflow, and no fallback exists or is wanted.
    """
    execution = manifest.execution
    if execution.engine != "openvino":
        return execution
    if not has_openvino():
        reason, remedy = "is not installed", "pip install openvino, or "
    elif manifest.precision == "int8" and int8_sums_overflow():
        reason, remedy = "adds products of int8 inexactly on this CPU, which has no VNNI", ""
    else:
        return execution
    if manifest.fallback is None:
        remedy += "export the model again with --engine onnxruntime"
    elif not engine_fallback:
        remedy += "start with --engine-fallback to use its graph for ONNX Runtime"
    else:
        logger.warning("`%s` runs in ONNX Runtime, with its scores for that: openvino %s", path, reason)
        return manifest.fallback
    raise ValueError(f"`{path}` was exported for OpenVINO, which {reason}; {remedy}")


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

    def __init__(self, path: Path, weight_files: Sequence[str], execution: Execution) -> None:
        """Load a graph.

        Args:
            path: path of the graph.
            weight_files: names of the files in its folder that hold its weights.
            execution: execution provider, threads and options.

        Raises:
            ValueError: when the execution provider is not installed or does not start.
            Exception: of any class, when ONNX Runtime refuses the graph.
        """
        check_installed(execution.provider, ort.get_available_providers())
        load_libraries(execution.provider, ort.preload_dlls)
        options = ort.SessionOptions()
        execution.configure(options)
        if execution.provider == CPU:
            with _lock:
                _create_arena()
            options.add_session_config_entry("session.use_env_allocators", "1")
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

    def new_run(self, *, frees: bool = False) -> OnnxRuntimeRun:
        """Return a handle for one call of `run`.

        Args:
            frees: on CPUs, free the memory of this run and of earlier ones in the end, of all graphs; the first block
                stays, with weights. Other runs go on.
        """
        run = OnnxRuntimeRun()
        if frees and self._provider == CPU:
            run.options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        return run

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
        """Run a batch on CPUs and free the memory of earlier, larger ones; do nothing on GPUs."""
        if self._provider == CPU:
            self.run(self.outputs[:1], arrays, self.new_run(frees=True))


@cache
def _create_arena() -> None:
    """Create the arena that all graphs of this process share: each of its own would keep the memory of its largest
    runs."""
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg({}))


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
        self._graph: Any = _load(directory, execution, num_cores)
        inputs, outputs, manifest = self._graph.inputs, self._graph.outputs, directory.manifest
        for kind, found, named in (("inputs", inputs, manifest.inputs), ("outputs", outputs, manifest.outputs)):
            if sorted(found) != sorted(named):
                raise ValueError(
                    f"`{self.path}` has the {kind} {', '.join(found)}, but its manifest names {', '.join(named)}; "
                    "export the model again"
                )
        if unknown := sorted(set(inputs) - set(INPUT_NAMES)):
            raise ValueError(f"`{self.path}` has an unknown input `{unknown[0]}`; allowed: {', '.join(INPUT_NAMES)}")
        if missing := sorted(set(output_names) - set(outputs)):
            raise ValueError(
                f"`{self.path}` has no output `{missing[0]}`, which its task needs; export the model again"
            )
        self._output_names = list(output_names)

    def new_run(self, *, frees: bool = False) -> AbortableRun:
        """Return a handle for one call of `run`; with `frees`, that of ONNX Runtime frees its memory in the end."""
        return self._graph.new_run(frees=frees)  # type: ignore[no-any-return]

    def run(self, arrays: Arrays, run: Any = None) -> Arrays:
        """Run the graph on one batch.

        Args:
            arrays: padded inputs by name, each [batch, length] int32.
            run: handle to abort the run with.

        Returns:
            Outputs by name.
        """
        return self._graph.run(self._output_names, self._feed(arrays), run or self.new_run())  # type: ignore[no-any-return]

    def release_memory(self, arrays: Arrays) -> None:
        """Free what larger batches than this one took."""
        self._graph.release_memory(self._feed(arrays))

    def _feed(self, arrays: Arrays) -> Arrays:
        return {name: arrays[name] for name in self._graph.inputs}


def _load(directory: ModelDirectory, execution: Execution, num_cores: int | None) -> OnnxRuntimeGraph | OpenVINOGraph:
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
