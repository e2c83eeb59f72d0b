"""Measure graphs, memory, server and pretraining on a GPU, in at most 20 minutes, without network.

    python -m benchmarks.gpu
    python -m benchmarks.gpu graphs server --out build/gpu-graphs
    python -m benchmarks.gpu --device cpu --seconds 0.2 --num-steps 20

Writes `gpu.json` and `gpu.md` after each part. The ONNX Runtime for GPUs takes the place of the other one: `pip
uninstall onnxruntime; pip install --group serving-gpu -c constraints.txt`. A part that fails does not stop the others;
the exit code is then 1. With `--device cpu`, tiny networks show that all parts run.
"""

from __future__ import annotations

import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator

import onnxruntime
import torch

from benchmarks.gpu.graphs import graphs
from benchmarks.gpu.memory import memory
from benchmarks.gpu.pretraining import pretraining, resume
from benchmarks.gpu.report import Part, Table, to_markdown, write_report
from benchmarks.gpu.server import server
from benchmarks.gpu.settings import GpuSettings, PartName
from benchmarks.gpu.steps import steps
from tasks.machine import available_cpus
from training.command import command, parse

PARTS: dict[PartName, Callable[[GpuSettings], Iterator[Table]]] = {
    "graphs": graphs,
    "memory": memory,
    "server": server,
    "steps": steps,
    "pretraining": pretraining,
    "resume": resume,
}


def run_part(name: PartName, settings: GpuSettings, save: Callable[[Part], None]) -> Part:
    """Run a part. Its tables are saved as they come; an error ends it, not the benchmark."""
    part, started = Part(), time.monotonic()
    try:
        for table in PARTS[name](settings):
            part.tables.append(table)
            part.seconds = time.monotonic() - started
            save(part)
    except Exception as error:  # whatever it is, the other parts are still worth their time
        if not isinstance(error, ValueError | OSError):
            traceback.print_exc()
        part.error = (str(error) or type(error).__name__).splitlines()[0]
    part.seconds = time.monotonic() - started
    save(part)
    return part


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
    machine, parts = _machine(settings), dict[str, Part]()
    for name in settings.parts:
        print(f"{name} ...", flush=True)

        def save(part: Part, name: str = name) -> None:
            parts[name] = part
            write_report(settings.out, machine, parts)

        part = run_part(name, settings, save)
        print(to_markdown({}, {name: part}), flush=True)
    if failed := [name for name, part in parts.items() if part.error]:
        sys.exit(f"error: failed: {', '.join(failed)}; `{settings.out / 'gpu.md'}` has the rest")
    print(f"written: {settings.out / 'gpu.md'}, {settings.out / 'gpu.json'}")


if __name__ == "__main__":
    main()
