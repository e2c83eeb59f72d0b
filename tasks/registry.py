"""Tasks by name, and their settings as plain dictionaries for `task.json` and `manifest.json`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from tasks.base import AnyTask, TaskSettings
from tasks.classification import Classification
from tasks.embedding import Embedding
from tasks.masked_lm import MaskedLM
from tasks.multiple_choice import MultipleChoice
from tasks.regression import Regression
from tasks.spans import Spans
from tasks.tagging import Tagging
from tasks.tokenizer import Tokenizer

TASKS: dict[str, type[AnyTask]] = {
    task.name: task for task in (Embedding, Classification, Spans, MaskedLM, Regression, MultipleChoice, Tagging)
}


def create_task(name: str, tokenizer: Tokenizer, settings: TaskSettings) -> AnyTask:
    """Return the task of a name with a tokenizer and settings."""
    return TASKS[name](tokenizer, settings)


def settings_to_dict(settings: TaskSettings) -> dict[str, Any]:
    """Return settings as JSON-compatible values."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(settings).items()}


def settings_from_dict(name: str, values: Mapping[str, Any]) -> TaskSettings:
    """Return the settings of a task from JSON values.

    Raises:
        ValueError: naming the task or the key that is unknown, of the wrong type, or out of range.
    """
    if not isinstance(name, str) or name not in TASKS:
        raise ValueError(f"unknown task: `{name}` (one of: {', '.join(TASKS)})")
    if not isinstance(values, Mapping):
        raise ValueError(f"settings of task `{name}` must be an object: `{values!r}`")
    settings_type = TASKS[name].settings_type
    known = {field.name: field for field in fields(settings_type)}
    unknown = [key for key in values if key not in known]
    if unknown:
        raise ValueError(f"unknown setting of task `{name}`: `{unknown[0]}` (known: {', '.join(known)})")
    converted = {key: _convert(key, value, known[key].default) for key, value in values.items()}
    return settings_type(**converted)


def _convert(key: str, value: Any, default: Any) -> Any:
    if isinstance(default, tuple):
        if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise ValueError(f"setting `{key}` must be a list of strings: `{value!r}`")
    wanted = (int, float) if isinstance(default, float) else type(default)
    if not isinstance(value, wanted) or (isinstance(value, bool) and not isinstance(default, bool)):
        raise ValueError(f"setting `{key}` must be of type {type(default).__name__}: `{value!r}`")
    if isinstance(default, float) and not abs(value) <= sys.float_info.max:
        raise ValueError(f"setting `{key}` must be a finite number")
    return type(default)(value)
