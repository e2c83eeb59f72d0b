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
    if subprocess.run([sys.executable, "-m", *shlex.split(arguments)], check=False).returncode:
        raise ValueError(f"`python -m {arguments.split()[0]}` failed; what it says stands above")
    return time.monotonic() - start
