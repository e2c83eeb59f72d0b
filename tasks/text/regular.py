"""Read regular files only: opening a pipe waits for its writer, and a device may never end."""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path


def open_regular(path: str | Path) -> BufferedReader:
    """Open a regular file for reading.

    Raises:
        ValueError: when it is a pipe, socket or device.
        OSError: when it cannot be read; IsADirectoryError for a folder.
    """
    _check(path, os.stat(path).st_mode)  # before opening it, since opening has effects on some devices
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _check(path, os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check(path: str | Path, mode: int) -> None:
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # reading a folder raises its own error
        raise ValueError(f"not a regular file: `{path}`; put a file in its place")


def read_regular(path: str | Path, max_bytes: int | None = None) -> bytes:
    """Return the content of a regular file.

    Raises:
        ValueError: when it is a pipe, socket or device, or larger than `max_bytes`.
        OSError: when it cannot be read.
    """
    with open_regular(path) as file:
        content = file.read(-1 if max_bytes is None else max_bytes + 1)
    if max_bytes is not None and len(content) > max_bytes:
        raise ValueError(f"`{path}` is too large: more than {max_bytes} bytes")
    return content
