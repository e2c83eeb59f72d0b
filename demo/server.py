"""Server process for the demo's models, and one-line errors of the client."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bertline import BertlineError
from bertline.jobs.engine import HERE, server_process


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Convert errors of the client to ValueError, which commands print as one line."""
    try:
        yield
    except BertlineError as error:
        raise ValueError(str(error)) from error


class Server:
    """`python -m serving` on free ports of this machine, without settings from the environment; ends with the context.

    Attributes:
        target: `host:port` for the client.
    """

    def __init__(self, models: Path) -> None:
        self._command = [sys.executable, "-m", "serving", str(models), *HERE]
        self._context = ExitStack()

    def __enter__(self) -> Server:
        print(f"$ python {' '.join(self._command[1:])}", flush=True)
        with self._context:
            self._process, ready = self._context.enter_context(server_process(self._command))
            if ready is None:
                raise ValueError("the server did not start; its error is above")
            self._context = self._context.pop_all()
        print(ready["message"], flush=True)
        self.target = str(ready["target"])
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()
