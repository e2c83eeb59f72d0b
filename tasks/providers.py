"""Execution providers of ONNX Runtime: which package has each, and what is said where one is missing.

`tasks` does not load ONNX Runtime; who has loaded it says what it found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

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
"""Of each provider, the one that has it; only one of them can be installed at a time."""


def check_installed(provider: str, installed: Sequence[str]) -> None:
    """Refuse a provider that the installed ONNX Runtime lacks.

    Args:
        installed: what `onnxruntime.get_available_providers()` says.

    Raises:
        ValueError: naming what there is, and the package that has the provider.
    """
    if provider not in installed:
        package = PACKAGES.get(provider, "a build of ONNX Runtime that has it")
        raise ValueError(
            f"execution provider is not installed: `{provider}` (available: {', '.join(installed)}); "
            f"pip install {package}, after pip uninstall of the onnxruntime that is there"
        )


def check_started(provider: str, started: Sequence[str]) -> None:
    """Refuse a session for which ONNX Runtime took another provider.

    Args:
        started: what the session's `get_providers()` says, which lacks those that failed.

    Raises:
        ValueError: naming the provider.
    """
    if started[0] != provider:
        raise ValueError(
            f"execution provider does not start: `{provider}` (started: {', '.join(started)}); see what "
            f"{PACKAGES.get(provider, 'it')} requires of drivers and libraries"
        )


def with_streams(options: Mapping[str, str], *, num_streams: int, num_threads: int) -> dict[str, str]:
    """OpenVINO's options with as many batches at the same time as there are streams; what they set already stays.

    Args:
        num_threads: of all streams together.

    Raises:
        ValueError: when the options hold no JSON where OpenVINO expects it.
    """
    streams = {"NUM_STREAMS": str(num_streams), "INFERENCE_NUM_THREADS": str(num_threads)}
    text = options.get("load_config", "{}")
    try:
        config = json.loads(text)
        config = {**config, "CPU": {**streams, **config.get("CPU", {})}}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"provider option `load_config` must be JSON, settings by device: `{text}`") from error
    return {**options, "load_config": json.dumps(config)}
