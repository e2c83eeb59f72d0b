"""JSON that users may have edited: whatever is wrong with it gets one line that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.regular import open_regular


def read_json_value(path: Path) -> Any:
    """What a file holds.

    Raises:
        ValueError: naming the file, when it is broken.
    """
    try:
        with open_regular(path) as file:
            return json.loads(file.read().decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"broken JSON in `{path}`: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        ValueError: naming the file, when it holds something else.
    """
    values = read_json_value(path)
    if not isinstance(values, dict):
        raise ValueError(f"`{path}` must hold a JSON object")
    return values


def read_flag(values: dict[str, Any], key: str, path: Path, *, default: bool = False) -> bool:
    """What one of the keys of an object says, yes or no.

    Raises:
        ValueError: naming the file and the key, when it says something else.
    """
    value = values.get(key, default)
    if not isinstance(value, bool):
        raise ValueError(f"`{path}`: {key} must be true or false: `{value!r}`")
    return value
