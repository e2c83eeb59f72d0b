"""Measure memory, server and pretraining on a GPU, in at most 20 minutes, without network.

    python -m benchmarks.gpu
    python -m benchmarks.gpu server resume --out build/gpu-server
    python -m benchmarks.gpu --device cpu --seconds 0.2 --num-steps 20

Writes `build/gpu.json` and `build/gpu.md` after each table. The ONNX Runtime for GPUs takes the place of the other one:
`pip uninstall onnxruntime; pip install --group serving-gpu -c constraints.txt`. A part that fails does not stop the
others; the exit code is then 1. With `--device cpu`, tiny networks show that all parts run.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from functools import partial

import onnxruntime
import torch

from benchmarks.gpu.memory import memory
from benchmarks.gpu.pretraining import pretraining, resume
from benchmarks.gpu.server import server
from benchmarks.gpu.settings import GpuSettings, PartName
from benchmarks.report import Table, run_parts
from tasks.bundle.machine import available_cpus
from training.command_line.command import command, parse

PARTS: dict[PartName, Callable[[GpuSettings], Iterator[Table]]] = {
    "memory": memory,
    "server": server,
    "pretraining": pretraining,
    "resume": resume,
}


def _machine(settings: GpuSettings) -> dict[str, str]:
    device = "no GPU (dry run)" if settings.is_dry else torch.cuda.get_device_name()
    return {
        "device": device,
        "cores": str(available_cpus()),
        "Python": platform.python_version(),
        "PyTorch": torch.__version__,
        "ONNX Runtime": onnxruntime.__version__,
    }


@command
def main() -> None:
    """Run the benchmark."""
    settings = parse(GpuSettings, "benchmarks.gpu", __doc__)
    run_parts({name: partial(PARTS[name], settings) for name in settings.parts}, _machine(settings), settings.out)


if __name__ == "__main__":
    main()
