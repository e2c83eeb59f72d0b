"""One graph in ONNX Runtime, run as its manifest says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort

from tasks.features import INPUT_NAMES
from tasks.manifest import Execution
from tasks.model_directory import ModelDirectory
from tasks.providers import CPU, CUDA, check_installed, check_started
from tasks.regular import read_regular

Arrays = dict[str, np.ndarray]

_FATAL = 4
"""Severity: what goes wrong in a run comes as an exception and is logged once, by us."""


class Run:
    """A run of a graph, which may be told to end from another thread, even before it begins."""

    def __init__(self) -> None:
        self.options = ort.RunOptions()
        self.options.log_severity_level = _FATAL

    def abort(self) -> None:
        """Let it end with an exception, after the operator that it is at."""
        self.options.terminate = True


class Engine:
    """An ONNX Runtime session; `run` may be called from many threads at once."""

    def __init__(self, directory: ModelDirectory, output_names: tuple[str, ...], execution: Execution) -> None:
        """Load the graph.

        Args:
            output_names: outputs to compute, of those that the manifest names.
            execution: how to run it: the manifest's, as a rule.

        Raises:
            ValueError: naming the file, when the execution provider is missing, the graph cannot be loaded, or its
                inputs or outputs are not those of the manifest.
        """
        self.path = directory.model_path
        self._session = _load(directory, execution)
        inputs = tuple(item.name for item in self._session.get_inputs())
        outputs = tuple(item.name for item in self._session.get_outputs())
        _compare(self.path, "inputs", inputs, directory.manifest.inputs)
        _compare(self.path, "outputs", outputs, directory.manifest.outputs)
        if unknown := sorted(set(inputs) - set(INPUT_NAMES)):
            raise ValueError(f"unknown input of `{self.path}`: `{unknown[0]}` (known: {', '.join(INPUT_NAMES)})")
        if missing := sorted(set(output_names) - set(outputs)):
            raise ValueError(f"`{self.path}` lacks the output `{missing[0]}` of its task; export the model again")
        self._input_names, self._output_names = inputs, list(output_names)

    def run(self, arrays: Arrays, run: Run | None = None) -> Arrays:
        """Padded arrays by name, each [batch, length] int32 -> outputs by name."""
        feed = {name: arrays[name] for name in self._input_names}
        outputs = self._session.run(self._output_names, feed, (run or Run()).options)
        return dict(zip(self._output_names, outputs, strict=True))


def _load(directory: ModelDirectory, execution: Execution) -> ort.InferenceSession:
    path = directory.model_path
    try:
        check_installed(execution.provider, ort.get_available_providers())
        options = _options(execution)
        weights = _weights(directory, execution, options)
        try:
            session = ort.InferenceSession(
                str(path),
                options,
                providers=execution.providers,
                disabled_optimizers=list(execution.disabled_optimizers),
                enable_fallback=0,  # to another provider, with no more than a line on stdout
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
    """Give ONNX Runtime the weights that lie beside the graph. It would map their files into memory: writing to one
    later would change the outputs, and a file that became shorter would end the process.

    Returns:
        The weights that it was given, to be kept until the session is made.
    """
    if execution.provider not in (CPU, CUDA):  # others pass the graph on with the names of its files
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
            f"{kind} of `{path}` are {', '.join(found)} where the manifest says {', '.join(expected)}; "
            "export the model again"
        )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
