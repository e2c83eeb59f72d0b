"""Server that a job starts on this machine, and that ends with the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from bertline.jobs.storage import FileError

SERVER = "bertline_server"
"""Package of the server, which the distribution `bertline-server` installs."""
NO_SERVER = "no server is installed here; install both wheels of `make dist` by their paths"
"""Error where the package of the server is missing."""
LOCAL_FLAGS = ("--host", "127.0.0.1", "--port", "0", "--metrics-port", "0")
"""Flags of a server that only this machine can reach."""
_START = """
import ctypes, importlib.util, os, runpy, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: end with the job, also when that is killed
    if os.getppid() != {job}:
        sys.exit()  # the job was killed before that
if not importlib.util.find_spec("{module}"):
    sys.exit("{no_server}, or run this in Bertline's repository")
runpy.run_module("{module}", run_name="__main__", alter_sys=True)
"""


@contextmanager
def engine(models: str) -> Iterator[str]:
    """Serve a directory of models.

    Yields:
        The target.

    Raises:
        FileError: when it cannot be served.
    """
    if not Path(models).is_dir():
        raise FileError(
            f"no directory of models: `{models}`; --engine needs a folder with <name>/<version>/manifest.json"
        )
    module = SERVER if find_spec(SERVER) else "serving"  # in a checkout
    start = _START.format(job=os.getpid(), module=module, no_server=NO_SERVER)
    command = [sys.executable, "-c", start, models, *LOCAL_FLAGS, "--log-level", "error"]
    with tempfile.TemporaryFile("w+") as log, server_process(command, stderr=log) as (_, ready):
        if ready is None:
            log.seek(0)
            reason = (log.read().strip().splitlines() or ["it ended"])[-1].removeprefix("error: ")
            raise FileError(f"cannot serve `{models}`: {reason}")
        yield str(ready["target"])


@contextmanager
def server_process(
    command: Sequence[str], *, stderr: TextIO | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any] | None]]:
    """Run a server, wait until it is ready, and end it with the context.

    Args:
        command: command of the server; `--ready-fd` is appended.
        stderr: file for its log; None for that of this process.

    Yields:
        The process, and the fields of its ready line (`target`, `metrics_url`, `message`, ...); None if it ended before
        it was ready.
    """
    # Without settings of other servers, such as their tokens.
    env = {name: value for name, value in os.environ.items() if not name.upper().startswith("BERTLINE_")}
    ready_fd, write_fd = os.pipe()
    with open(ready_fd, encoding="utf-8") as ready:
        try:
            process = subprocess.Popen(
                [*command, "--ready-fd", str(write_fd)],
                pass_fds=(write_fd,),
                env=env,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )
        finally:
            os.close(write_fd)
        try:
            line = ready.readline()
            yield process, json.loads(line) if line else None
        finally:
            process.terminate()
            process.wait()
