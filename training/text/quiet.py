"""Standard output without what threads of a library print there."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO


class _Without(io.TextIOBase):
    def __init__(self, file: TextIO, prefix: str) -> None:
        self._file = file
        self._prefix = prefix

    def write(self, text: str) -> int:
        if threading.current_thread().name.startswith(self._prefix):
            return len(text)
        return self._file.write(text)

    def flush(self) -> None:
        self._file.flush()


@contextmanager
def without_threads(prefix: str) -> Iterator[None]:
    """Drop what threads print whose name begins so: Ray's print the end of a node's log for each node that dies."""
    with redirect_stdout(_Without(sys.stdout, prefix)):  # type: ignore[type-var]
        yield
