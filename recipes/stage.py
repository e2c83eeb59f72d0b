"""Run a command of this project as a stage of a pipeline."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time


def heading(number: int, total: int, title: str) -> str:
    """Return the heading of a stage, bold on a terminal."""
    text = f"[{number}/{total}] {title}"
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() else text


def run_stage(number: int, total: int, title: str, arguments: str, *, only_result: bool = False) -> float:
    """Print and run one command; return its duration in seconds.

    Args:
        number, total: position of the stage (1-based), and number of stages.
        arguments: arguments of `python -m`.
        only_result: print only the last line of its output, unless it fails.

    Raises:
        ValueError: if it fails; its own error is printed before.
    """
    print(f"\n{heading(number, total, title)}\n$ python -m {arguments}", flush=True)
    start = time.monotonic()
    if _run([sys.executable, "-m", *shlex.split(arguments)], only_result=only_result):
        raise ValueError(f"`python -m {arguments.split()[0]}` failed; its error is printed above")
    return time.monotonic() - start


def _run(command: list[str], *, only_result: bool) -> int:
    """Run a command and return its exit code; when interrupted, wait until it has shut down."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE if only_result else None, text=True)
    try:
        output, _ = process.communicate()
    except KeyboardInterrupt as interrupt:
        if type(interrupt) is not KeyboardInterrupt:  # on Ctrl-C, the terminal signals the command as well
            process.terminate()
        process.communicate()
        raise
    if output:
        print(output.strip() if process.returncode else output.strip().splitlines()[-1], flush=True)
    return process.returncode
