"""Run a graph in OpenVINO on the CPU, the same way at export and in the server. Imports `openvino` when it is used."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tasks.bundle.machine import available_cpus
from tasks.bundle.manifest import Execution
from tasks.bundle.providers import check_openvino

Arrays = Mapping[str, np.ndarray]

STEPS = 8
"""Sizes that batches may have between a power of two and the next, for rows and for length. OpenVINO compiles operators
for each shape, so that a new one takes 6 ms more (6 layers of 384); padding costs 3% of the tokens on average."""


class OpenVINORun:
    """Run of a graph that another thread can abort, even before it begins.

    OpenVINO can cancel a request after `start_async` has returned; one that `infer` computes goes on to its end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._request: Any = None
        self._is_aborted = False

    def begin(self, request: Any, inputs: Arrays) -> None:
        """Start a request, which does not copy its inputs.

        Raises:
            RuntimeError: when the run was aborted before, or OpenVINO refuses the inputs.
        """
        with self._lock:
            if self._is_aborted:
                raise RuntimeError("the run was aborted")
            request.start_async(inputs, share_inputs=True)
            self._request = request

    def end(self) -> None:
        """Note that the request is free for other runs."""
        with self._lock:
            self._request = None

    def abort(self) -> None:
        """End the run with an exception after its current operator."""
        with self._lock:
            self._is_aborted = True
            if self._request is not None:
                self._request.cancel()


class OpenVINOGraph:
    """Compiled graph; `run` is thread-safe."""

    def __init__(
        self,
        model: Path | bytes,
        execution: Execution,
        num_cores: int | None = None,
        *,
        max_length: int | None = None,
    ) -> None:
        """Compile a graph.

        Args:
            model: path of the graph, or the graph with its weights as bytes.
            num_cores: cores of all runs together; None for those of the machine.
            max_length: number of positions of the network, to which batches are padded at most; None for any length.

        Raises:
            ValueError: when OpenVINO is not installed, does not start or cannot compile the graph, or the graph has a
                loop; in one line.
        """
        check_openvino()
        try:
            core = _core()
            graph = core.read_model(model)
            if _has_loop(graph):
                raise ValueError(
                    "it has a loop, which OpenVINO cannot abort; export the model with --engine onnxruntime"
                )
            # Before it is compiled: after that, outputs also have the names of operators that were fused into them.
            inputs, outputs = (tuple(item.any_name for item in items) for items in (graph.inputs, graph.outputs))
            settings = compiler_settings(execution, num_cores or available_cpus())
            self._compiled = core.compile_model(graph, "CPU", settings)
        except RuntimeError as error:
            raise ValueError(reason(error)) from error
        self.inputs = inputs
        """Names of the inputs."""
        self.outputs = outputs
        """Names of the outputs."""
        shapes = (item.partial_shape for item in self._compiled.outputs)
        self._token_outputs = {
            name for name, shape in zip(outputs, shapes, strict=True) if len(shape) > 1 and shape[1].is_dynamic
        }
        """Outputs whose second axis is the length of the batch."""
        self._max_length = max_length or sys.maxsize
        self._idle: list[Any] = []

    def run(self, names: Sequence[str], arrays: Arrays, run: OpenVINORun | None = None) -> dict[str, np.ndarray]:
        """Run the graph on one batch, padded to one of few shapes.

        Args:
            names: names of the outputs to return, each [batch, ...]; the second axis may be the length.
            arrays: an array for each input, by name, [batch, length] with a mask of the padding.
            run: handle to abort the run with.

        Returns:
            Outputs by name, without the padding that was added.

        Raises:
            RuntimeError: when the run fails or is aborted.
        """
        run, request = run or OpenVINORun(), self._request()
        rows, length = arrays[self.inputs[0]].shape
        shape = rounded_up(rows), max(length, min(rounded_up(length), self._max_length))
        inputs = {name: _padded(arrays[name], shape) for name in self.inputs}
        try:
            run.begin(request, inputs)
            request.wait()
        except RuntimeError as error:
            raise RuntimeError(reason(error)) from error
        finally:
            run.end()
        outputs = {name: request.get_tensor(name).data for name in names}
        found = {
            name: np.array(array[:rows, :length] if name in self._token_outputs else array[:rows])
            for name, array in outputs.items()
        }
        self._idle.append(request)
        return found

    def new_run(self, *, frees: bool = False) -> OpenVINORun:
        """Return a handle for one call of `run`. `frees` has no effect: one run alone cannot free its memory."""
        return OpenVINORun()

    def release_memory(self, arrays: Arrays) -> None:
        """Free the intermediate results of earlier batches. No other run may be active."""
        self._idle.clear()
        self._compiled.release_memory()

    def _request(self) -> Any:
        """Return a request that no other thread uses; there are as many as runs at the same time."""
        with suppress(IndexError):
            return self._idle.pop()
        return self._compiled.create_infer_request()


def compiler_settings(execution: Execution, num_cores: int) -> dict[str, str]:
    """Return the properties that OpenVINO compiles a graph with, the same at export and in the server.

    One stream for each batch that runs at the same time. Threads are not bound to cores, which others may be using.
    OpenVINO keeps compiled operators for every shape, which takes gigabytes unless their number is bounded.

    Args:
        num_cores: cores of all streams together.
    """
    return {
        "NUM_STREAMS": str(max(1, num_cores // execution.num_threads)),
        "INFERENCE_NUM_THREADS": str(num_cores),
        "INFERENCE_PRECISION_HINT": "bf16" if execution.floats == "bf16" else "f32",
        "ENABLE_CPU_PINNING": "NO",
        "CPU_RUNTIME_CACHE_CAPACITY": "512",
        **execution.provider_options,
    }


_cores: list[Any] = []
_core_lock = threading.Lock()


def _core() -> Any:
    """Return the only core of this process, which stays to its end.

    Each core gives its thread an alternate stack for signal handlers, and puts back the one before when it is deleted.
    If the first of two is deleted first, the second puts back its freed stack, and the next signal, such as Ctrl-C,
    ends the process with a segmentation fault (seen with OpenVINO 2026.4.1).

    The first array of a batch loads a table of NumPy's functions. Two threads that do so at once wait for each other
    forever, one with the interpreter lock and one with the table's, so the table is loaded here.
    """
    import openvino

    with _core_lock:
        if not _cores:
            core = openvino.Core()
            core.set_property({"ENABLE_MMAP": False})  # a later write to a mapped file would change the outputs
            openvino.Tensor(np.zeros(1), shared_memory=True)
            _cores.append(core)
        return _cores[0]


def _has_loop(graph: Any) -> bool:
    """Return whether a graph may run without end. A loop ignores aborts, and constant ones run while compiling."""
    for operator in graph.get_ops():
        name = operator.get_type_name()
        if name in ("Loop", "TensorIterator") or (
            name == "If" and any(_has_loop(operator.get_function(index)) for index in range(2))
        ):
            return True
    return False


def rounded_up(size: int) -> int:
    """Return the next size that batches may have: with 3 significant bits after the first, as 17 -> 18 and 67 -> 72."""
    step = 2 ** max(0, size.bit_length() - STEPS.bit_length())
    return -(-size // step) * step


def _padded(array: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Return an array with more columns of zeros, which the mask leaves out, and copies of the last row."""
    if array.shape == shape:
        return array
    rows, length = array.shape
    padded = np.zeros(shape, array.dtype)
    padded[:rows, :length] = array
    padded[rows:] = padded[rows - 1]
    return padded


def reason(error: RuntimeError) -> str:
    """Return the line of one of OpenVINO's errors that states what is wrong.

    Its messages begin with lines on where in its source the exception was raised, and end with the reason.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].removeprefix("Caught exception: ") if lines else type(error).__name__
