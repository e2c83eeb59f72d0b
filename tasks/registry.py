"""Tasks by name, and their settings as plain dictionaries for `task.json` and `manifest.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal

from tasks.base import AnyTask, TaskSettings
from tasks.classification import Classification
from tasks.embedding import Embedding
from tasks.masked_lm import MaskedLM
from tasks.multiple_choice import MultipleChoice
from tasks.regression import Regression
from tasks.schema import read_fields
from tasks.spans import Spans
from tasks.sparse_embedding import SparseEmbedding
from tasks.tagging import Tagging
from tasks.text.json_files import as_json
from tasks.text.tokenizer import Tokenizer
from tasks.token_embedding import TokenEmbedding

LabelledTask = Literal["classification", "spans", "regression", "multiple-choice", "tagging"]
"""Names of the tasks that are fine-tuned on labelled data."""
TaskName = LabelledTask | Literal["embedding", "masked-lm", "sparse-embedding", "token-embedding"]
TASKS: dict[str, type[AnyTask]] = {
    task.name: task
    for task in (
        *(Embedding, Classification, Spans, MaskedLM, Regression, MultipleChoice, Tagging),
        *(SparseEmbedding, TokenEmbedding),
    )
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
        raise ValueError(f"settings of task `{name}` must be an object: `{as_json(values)}`")
    settings_type = TASKS[name].settings_type
    return settings_type(**read_fields(settings_type, values, prefix="settings."))
