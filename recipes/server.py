"""Server process for the demo's models, and one-line errors of the client."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertline import BertlineError
from bertline.jobs.engine import LOCAL_FLAGS, server_process


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
