"""Read JSON files that users may edit; every mistake becomes one line that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from tasks.text.regular import read_regular


def read_json_value(path: Path, max_bytes: int | None = None) -> Any:
    """Return the JSON value in a file.

    Raises:
        ValueError: naming the file, when it is not JSON or larger than `max_bytes`.
    """
    try:
        return from_json(read_regular(path, max_bytes))
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
