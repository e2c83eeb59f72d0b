"""A server in a process of its own, for benchmarks."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bertline.jobs.engine import HERE, server_process
from tasks.model_directory import model_versions, read_model_directory


@dataclass(frozen=True)
class Served:
    """A server in a process of its own."""

    target: str
    process: subprocess.Popen[bytes]
    ready_s: float
    metrics: str
    """Where its metrics are."""

    @property
    def resident_mb(self) -> float:
        """Memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found
        return int(found[1]) / 1024


def embedding_model(models: Path) -> Path:
    """The highest version of the only model of vectors."""
    highest = [read_model_directory(versions[-1]) for versions in model_versions(models).values()]
    found = [directory for directory in highest if directory.manifest.task == "embedding"]
    if len(found) != 1:
        raise ValueError(f"`{models}` has {len(found)} models of vectors; this needs a folder with one")
    return found[0].path


@contextmanager
def served(models: Path, flags: Sequence[str] = (), *, module: str = "serving") -> Iterator[Served]:
    """Start a server and stop it in the end.

    Args:
        module: what is started; another one than `serving` takes the same arguments.
    """
    command = [sys.executable, "-m", module, str(models), *HERE, *flags]
    started_s = time.perf_counter()
    with server_process(command) as (process, ready):
        if ready is None:
            raise ValueError("the server did not start; its error is above")
        yield Served(ready["target"], process, time.perf_counter() - started_s, ready["metrics_url"])
