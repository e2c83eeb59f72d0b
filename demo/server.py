"""A server of the demo's models in a process of its own, and what is told of one that does not answer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertline import BertlineError
from bertline.jobs.engine import HERE, READY, environment


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Make what keeps a server from answering the client a mistake of the user, who gets one line."""
    try:
        yield
    except BertlineError as error:
        raise ValueError(str(error)) from error


class Server:
    """`python -m serving` on free ports of this machine, whatever variables say of other servers; stopped at the end.

    Attributes:
        target: `host:port` for the client.
    """

    def __init__(self, models: Path) -> None:
        self._command = [sys.executable, "-m", "serving", str(models), *HERE]

    def __enter__(self) -> Server:
        print(f"$ python {' '.join(self._command[1:])}", flush=True)
        self._process = subprocess.Popen(self._command, env=environment(), stdout=subprocess.PIPE, text=True)
        try:
            self.target = self._read_target()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _read_target(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        match = READY.search(line)
        if not match:
            raise ValueError("the server did not start; what it says stands above")
        print(line, end="", flush=True)
        return match[1]

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)
        assert self._process.stdout
        self._process.stdout.close()
