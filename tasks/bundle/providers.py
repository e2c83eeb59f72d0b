"""Engines and execution providers: their packages, and errors for one that is missing or does not start.

`tasks` does not load ONNX Runtime; callers pass the providers that it reports.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

from tasks.base import first_line

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
OPENVINO = "OpenVINO"
"""OpenVINO itself, not ONNX Runtime's execution provider for it: it installs with every package of ONNX Runtime."""

Engine = Literal["onnxruntime", "openvino"]
"""Library that runs a graph, by the name of its module."""

PACKAGES = {
    CPU: "onnxruntime",
    CUDA: "onnxruntime-gpu",
    TENSORRT: "onnxruntime-gpu",
    OPENVINO: "openvino",
}
"""Provider -> package that has it; only one of ONNX Runtime's packages can be installed at a time."""


def engine_of(provider: str) -> Engine:
    """Return the engine that has a provider."""
    return "openvino" if provider == OPENVINO else "onnxruntime"


def has_openvino() -> bool:
    """Return whether OpenVINO is installed."""
    return find_spec("openvino") is not None


def check_openvino() -> None:
    """Raise ValueError, naming the package to install, if OpenVINO is not installed or cannot be imported."""
    if not has_openvino():
        raise ValueError(f"engine is not installed: `openvino`; pip install {PACKAGES[OPENVINO]}")
    try:
        import_module("openvino")
    except Exception as error:  # a broken installation raises anything
        remedy = f"pip install --force-reinstall {PACKAGES[OPENVINO]}"
        raise ValueError(f"engine does not start: `openvino`: {first_line(error)}; {remedy}") from error


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
        with redirect_stdout(io.StringIO()):  # it prints what it does not find; `check_started` reports what follows
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
