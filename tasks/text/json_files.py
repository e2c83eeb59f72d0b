"""Read files that users may edit, and JSON in them; every mistake becomes one line that names the file.

Only regular files are read: opening a pipe waits for its writer, and a device may never end.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path
from typing import Any

from pydantic_core import from_json

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""Start of the small text that git leaves in place of a large file."""


def open_regular(path: str | Path) -> BufferedReader:
    """Open a regular file for reading.

    Raises:
        ValueError: when it is a pipe, socket or device, or a pointer of git-lfs.
        OSError: when it cannot be read; IsADirectoryError for a folder.
    """
    mode = os.stat(path).st_mode  # before opening it, since opening waits or has effects on pipes and devices
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # opening a folder raises its own error
        raise ValueError(f"not a regular file: `{path}`; put a file in its place")
    with ExitStack() as stack:
        file = stack.enter_context(open(path, "rb", opener=_open_without_waiting))
        if file.peek(len(_LFS_POINTER)).startswith(_LFS_POINTER):
            raise ValueError(f"`{path}` is a git-lfs pointer, not the file itself; run git lfs pull")
        stack.pop_all()
    return file


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)  # the file may have become a pipe


def read_regular(path: str | Path, max_bytes: int | None = None) -> bytes:
    """Return the content of a regular file.

    Raises:
        ValueError: as `open_regular`, or when it is larger than `max_bytes`.
        OSError: when it cannot be read.
    """
    with open_regular(path) as file:
        content = file.read(-1 if max_bytes is None else max_bytes + 1)
    if max_bytes is not None and len(content) > max_bytes:
        raise ValueError(f"`{path}` is too large: more than {max_bytes} bytes")
    return content


def read_json_value(path: Path, max_bytes: int | None = None) -> Any:
    """Return the JSON value in a file.

    Raises:
        ValueError: naming the file, when it is not JSON or larger than `max_bytes`.
    """
    content = read_regular(path, max_bytes)
    try:
        return from_json(content)
    except ValueError as error:
        raise ValueError(f"broken JSON in `{path}`: {error}") from error


def read_json(path: Path, max_bytes: int | None = None) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        ValueError: naming the file, when it is not a JSON object or larger than `max_bytes`.
    """
    values = read_json_value(path, max_bytes)
    if not isinstance(values, dict):
        raise ValueError(f"`{path}` must hold a JSON object")
    return values


def read_optional_json(path: Path, max_bytes: int | None = None) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is no file.

    Raises:
        ValueError: as `read_json`.
    """
    return read_json(path, max_bytes) if path.is_file() else {}


def as_json(value: Any, max_chars: int = 60) -> str:
    """Return a value as JSON, as it stands in a file, on one line and cut if it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= max_chars else f"{text[:max_chars]}..."


def read_flag(values: dict[str, Any], key: str, path: Path, *, default: bool = False) -> bool:
    """Return the value of a key that must be true or false.

    Raises:
        ValueError: naming the file and the key.
    """
    value = values.get(key, default)
    if not isinstance(value, bool):
        raise ValueError(f"`{path}`: {key} must be true or false: `{as_json(value)}`")
    return value
