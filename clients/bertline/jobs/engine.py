"""A server that is started for a job, on this machine, and ends with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from bertline.jobs.storage import FileError

READY = re.compile(r" on (\S+:\d+), metrics ")
"""Finds the target in the line that a server prints when it takes calls."""
HERE = ("--host", "127.0.0.1", "--port", "0", "--metrics-port", "0")
"""Flags of a server that this machine alone can reach."""
_START = """
import ctypes, os, runpy, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: end with the job, also where that is killed
    if os.getppid() != {job}:
        sys.exit()  # it was killed before that
runpy.run_module("serving", run_name="__main__", alter_sys=True)
"""


@contextmanager
def engine(models: str) -> Iterator[str]:
    """Serve a folder of models.

    Yields:
        The target.

    Raises:
        FileError: when it cannot be served.
    """
    command = [sys.executable, "-c", _START.format(job=os.getpid()), models, *HERE, "--log-level", "error"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield _target(process, models, log)
        finally:
            process.terminate()
            process.communicate()


def environment() -> dict[str, str]:
    """That of a server which is started beside others: their settings, such as tokens, are not for this one."""
    return {name: value for name, value in os.environ.items() if not name.upper().startswith("BERTLINE_")}


def _target(process: subprocess.Popen[str], models: str, log: TextIO) -> str:
    assert process.stdout
    if found := READY.search(process.stdout.readline()):
        return found[1]
    process.wait()
    log.seek(0)
    last = (log.read().strip().splitlines() or ["it ended"])[-1]
    if "No module named" in last:
        last = "Bertline's `serving` is not here; run this in its repository, or put that on PYTHONPATH"
    raise FileError(f"cannot serve `{models}`: {last.removeprefix('error: ')}")
