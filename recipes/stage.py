"""Run commands of this project: stages of a pipeline, and a server for its models."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertline import BertlineError
from bertline.jobs.engine import LOCAL_FLAGS, server_process


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
    start, command = time.monotonic(), [sys.executable, "-m", *shlex.split(arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE if only_result else None, text=True)
    try:
        output, _ = process.communicate()
    except KeyboardInterrupt as interrupt:  # wait until the command has shut down
        if type(interrupt) is not KeyboardInterrupt:  # on Ctrl-C, the terminal signals the command as well
            process.terminate()
        process.communicate()
        raise
    if output:
        print(output.strip() if process.returncode else output.strip().splitlines()[-1], flush=True)
    if process.returncode:
        raise ValueError(f"`python -m {arguments.split()[0]}` failed; its error is printed above")
    return time.monotonic() - start


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Convert errors of the client to ValueError, which commands print as one line."""
    try:
        yield
    except BertlineError as error:
        raise ValueError(str(error)) from error


@contextmanager
def serve(models: Path) -> Iterator[str]:
    """Run `python -m serving` on free ports of this machine, without settings from the environment.

    Yields:
        Its target, `host:port`.

    Raises:
        ValueError: if it does not start.
    """
    command = [sys.executable, "-m", "serving", str(models), *LOCAL_FLAGS]
    print(f"$ python {' '.join(command[1:])}", flush=True)
    with server_process(command) as (_, ready):
        if ready is None:
            raise ValueError("the server did not start; its error is printed above")
        print(ready["message"], flush=True)
        yield str(ready["target"])
