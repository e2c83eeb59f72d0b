"""Run a server in a separate process, for benchmarks."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bertline.jobs.engine import LOCAL_FLAGS, server_process
from tasks.bundle.model_directory import model_folders, read_model_directory, version_paths


@dataclass(frozen=True)
class ServerProcess:
    """Server that runs in a separate process."""

    target: str
    process: subprocess.Popen[bytes]
    ready_s: float
    """Seconds from the start of the process to its ready line."""
    metrics: str
    """URL of its metrics."""
    http: str = ""
    """URL of its HTTP API; empty without one."""

    @property
    def resident_mb(self) -> float:
        """Resident memory in MiB."""
        return resident_mb(self.process.pid)


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    assert found
    return int(found[1]) / 1024


def embedding_model(models: Path) -> Path:
    """Return the highest version of the only embedding model in a folder."""
    highest = [read_model_directory(paths[-1]) for folder in model_folders(models) if (paths := version_paths(folder))]
    found = [directory for directory in highest if directory.manifest.task == "embedding"]
    if len(found) != 1:
        raise ValueError(f"`{models}` has {len(found)} models of task `embedding`; give a folder with one")
    return found[0].path


@contextmanager
def running_server(models: Path, flags: Sequence[str] = (), *, prefix: Sequence[str] = ()) -> Iterator[ServerProcess]:
    """Run a server, and yield it when it is ready.

    Args:
        models: folder of models.
        flags: of the server.
        prefix: command that runs the server in the same process, as `taskset` does.

    Raises:
        ValueError: if the server does not start.
    """
    command = [*prefix, sys.executable, "-m", "serving", str(models), *LOCAL_FLAGS, *flags]
    started_s = time.perf_counter()
    with server_process(command) as (process, ready):
        if ready is None:
            raise ValueError("the server did not start; its error is above")
        yield ServerProcess(
            ready["target"], process, time.perf_counter() - started_s, ready["metrics_url"], ready["http_url"]
        )
