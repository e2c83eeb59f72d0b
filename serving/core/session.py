"""ONNX Runtime session of one model, with the settings of its manifest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort

from tasks.features import INPUT_NAMES
from tasks.manifest import Execution
from tasks.model_directory import ModelDirectory
from tasks.providers import CPU, CUDA, check_installed, check_started, load_libraries
from tasks.regular import read_regular

Arrays = dict[str, np.ndarray]

_FATAL = 4
"""Log severity of ONNX Runtime. Errors of a run are raised as exceptions, and the scheduler logs them once."""


class SessionRun:
    """Run of a graph that another thread can abort, even before it begins."""

    def __init__(self) -> None:
        self.options = ort.RunOptions()
        self.options.log_severity_level = _FATAL

    def abort(self) -> None:
        """End the run with an exception after its current operator."""
        self.options.terminate = True


class Session:
    """ONNX Runtime session; `run` is thread-safe."""

    def __init__(self, directory: ModelDirectory, output_names: tuple[str, ...], execution: Execution) -> None:
        """Load the graph.

        Args:
            directory: the model directory.
            output_names: outputs of the graph to compute.
            execution: execution provider, threads and options.

        Raises:
            ValueError: when the execution provider is missing, the graph cannot be loaded, or its inputs or outputs
                differ from the manifest. The message names the file.
        """
        self.path = directory.model_path
        self._session = _load(directory, execution)
        inputs = tuple(item.name for item in self._session.get_inputs())
        outputs = tuple(item.name for item in self._session.get_outputs())
        _compare(self.path, "inputs", inputs, directory.manifest.inputs)
        _compare(self.path, "outputs", outputs, directory.manifest.outputs)
        if unknown := sorted(set(inputs) - set(INPUT_NAMES)):
            raise ValueError(f"`{self.path}` has an unknown input `{unknown[0]}`; allowed: {', '.join(INPUT_NAMES)}")
        if missing := sorted(set(output_names) - set(outputs)):
            raise ValueError(
                f"`{self.path}` has no output `{missing[0]}`, which its task needs; export the model again"
            )
        self._input_names, self._output_names = inputs, list(output_names)

    def run(self, arrays: Arrays, run: SessionRun | None = None) -> Arrays:
        """Run the graph on one batch.

        Args:
            arrays: padded inputs by name, each [batch, length] int32.
            run: handle to abort the run with.

        Returns:
            Outputs by name.
        """
        feed = {name: arrays[name] for name in self._input_names}
        outputs = self._session.run(self._output_names, feed, (run or SessionRun()).options)
        return dict(zip(self._output_names, outputs, strict=True))


def _load(directory: ModelDirectory, execution: Execution) -> ort.InferenceSession:
    path = directory.model_path
    try:
        check_installed(execution.provider, ort.get_available_providers())
        load_libraries(execution.provider, ort.preload_dlls)
        options = _options(execution)
        weights = _weights(directory, execution, options)
        try:
            session = ort.InferenceSession(
                str(path),
                options,
                providers=execution.providers,
                disabled_optimizers=list(execution.disabled_optimizers),
                enable_fallback=0,  # otherwise it falls back to another provider with only a line on stdout
            )
        finally:
            del weights  # ONNX Runtime has copied them
        check_started(execution.provider, session.get_providers())
    except OSError:
        raise
    except Exception as error:  # ONNX Runtime's own errors share no base class
        raise ValueError(f"cannot load `{path}`: {_first_line(error)}") from error
    return session


def _weights(directory: ModelDirectory, execution: Execution, options: ort.SessionOptions) -> list[bytes]:
    """Read the external weight files of the graph and pass them to ONNX Runtime.

    ONNX Runtime itself would map the files into memory: a later write would change the outputs, and a truncated file
    would crash the process.

    Returns:
        The weights, to be kept alive until the session exists.
    """
    if execution.provider not in (CPU, CUDA):  # other providers read the files by name
        return []
    names = list(directory.weight_files)
    weights = [read_regular(directory.path / name) for name in names]
    if names:
        options.add_external_initializers_from_files_in_memory(names, weights, list(map(len, weights)))
    return weights


def _options(execution: Execution) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL
    for name, value in execution.session_options.items():
        setattr(options, name, value)
    for name, value in execution.session_config.items():
        options.add_session_config_entry(name, value)
    return options


def _compare(path: Path, kind: str, found: tuple[str, ...], expected: tuple[str, ...]) -> None:
    if sorted(found) != sorted(expected):
        raise ValueError(
            f"`{path}` has the {kind} {', '.join(found)}, but its manifest names {', '.join(expected)}; "
            "export the model again"
        )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
