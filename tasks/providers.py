"""Execution providers of ONNX Runtime: their packages, and errors for a provider that is missing or does not start.

`tasks` does not load ONNX Runtime; callers pass the providers that it reports.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"

PACKAGES = {
    CPU: "onnxruntime",
    CUDA: "onnxruntime-gpu",
    TENSORRT: "onnxruntime-gpu",
    OPENVINO: "onnxruntime-openvino",
}
"""Provider -> package that has it; only one of the packages can be installed at a time."""


def check_installed(provider: str, installed: Sequence[str]) -> None:
    """Raise ValueError, naming the package to install, if the installed ONNX Runtime lacks a provider.

    Args:
        installed: result of `onnxruntime.get_available_providers()`.
    """
    if provider not in installed:
        package = PACKAGES.get(provider, "a build of ONNX Runtime that has it")
        raise ValueError(
            f"execution provider is not installed: `{provider}` (available: {', '.join(installed)}); "
            f"pip uninstall the installed onnxruntime package, then pip install {package}"
        )


def load_libraries(provider: str, preload: Callable[[], None]) -> None:
    """Load CUDA and cuDNN from NVIDIA's Python packages, if those are installed; else the system's are used.

    Args:
        preload: `onnxruntime.preload_dlls`.
    """
    if provider in (CUDA, TENSORRT):
        with redirect_stdout(io.StringIO()):  # it prints what it does not find; `check_started` says what follows
            preload()


def check_started(provider: str, started: Sequence[str]) -> None:
    """Raise ValueError if a session runs on another provider than requested.

    Args:
        started: result of the session's `get_providers()`, which lacks those that failed.
    """
    if started[0] != provider:
        raise ValueError(
            f"execution provider does not start: `{provider}` (started: {', '.join(started)}); check "
            f"the drivers and libraries that {PACKAGES.get(provider, 'it')} requires"
        )


def add_openvino_streams(options: Mapping[str, str], *, num_streams: int, num_threads: int) -> dict[str, str]:
    """Return OpenVINO's options with a number of parallel streams, unless they set it already.

    Args:
        num_streams: batches computed at the same time.
        num_threads: of all streams together.

    Raises:
        ValueError: when `load_config` is no JSON object.
    """
    streams = {"NUM_STREAMS": str(num_streams), "INFERENCE_NUM_THREADS": str(num_threads)}
    text = options.get("load_config", "{}")
    try:
        config = json.loads(text)
        config = {**config, "CPU": {**streams, **config.get("CPU", {})}}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"provider option `load_config` must be JSON, settings by device: `{text}`") from error
    return {**options, "load_config": json.dumps(config)}
