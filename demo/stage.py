"""Commands of this project that run one after the other, each shown before it runs."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time


def run_stage(number: int, total: int, title: str, arguments: str) -> float:
    """Run one command, given by what comes after `python -m`; returns its seconds.

    Raises:
        ValueError: when it fails; it has said why.
    """
    print(f"\n\033[1m[{number}/{total}] {title}\033[0m\n$ python -m {arguments}", flush=True)
    start = time.monotonic()
    if _run([sys.executable, "-m", *shlex.split(arguments)]):
        raise ValueError(f"`python -m {arguments.split()[0]}` failed; what it says stands above")
    return time.monotonic() - start


def _run(command: list[str]) -> int:
    """The exit code of a command, which may end in its own way when this process is to end."""
    process = subprocess.Popen(command)
    try:
        return process.wait()
    except KeyboardInterrupt as interrupt:
        if type(interrupt) is not KeyboardInterrupt:  # a terminal tells the command of Ctrl-C, too
            process.terminate()
        process.wait()
        raise
