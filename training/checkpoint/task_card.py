"""Task card of a checkpoint: `task.json`, with its task, settings, scores and provenance."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tasks import settings_from_dict, settings_to_dict
from tasks.base import TaskSettings
from tasks.bundle.machine import MachineRecord
from tasks.schema import read_fields, read_value
from tasks.text.json_files import read_json

TASK_FILE = "task.json"
CARD_FILE = "README.md"
"""Model card, for people."""


@dataclass(frozen=True, kw_only=True)
class TaskCard:
    """Task, settings, scores and origin of a checkpoint."""

    task: str
    settings: TaskSettings
    scores: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Recipe, digests of the data, starting checkpoint and versions. `pretraining` has the same for pretraining;
    `before` has it for an earlier stage of the same kind."""

    def to_json(self) -> str:
        """Return the text of `task.json`."""
        values = asdict(self) | {"settings": settings_to_dict(self.settings)}
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def read_task_card(directory: str | Path) -> TaskCard | None:
    """Read the task card of a checkpoint; None if there is none (a checkpoint from elsewhere).

    Raises:
        ValueError: names the file and the wrong key.
    """
    path = Path(directory) / TASK_FILE
    if not path.is_file():
        return None
    values = read_json(path)
    try:
        fields = read_fields(TaskCard, values)
        _check_records(values)
        return TaskCard(**fields | {"settings": settings_from_dict(fields["task"], fields["settings"])})
    except ValueError as error:
        raise ValueError(f"broken task card `{path}`: {error}") from error


_RECORDS: dict[str, Any] = {
    **dict.fromkeys(
        (
            *("scores", "provenance", "provenance.data", "provenance.recipe", "provenance.pretraining"),
            *("provenance.pretraining.recipe", "provenance.recipe.columns", "provenance.recipe.dev_columns"),
            *("provenance.before", "provenance.pretraining.before"),
        ),
        dict[str, Any],
    ),
    **dict.fromkeys(("provenance.recipe.dev", "provenance.recipe.train"), list[str]),
    **dict.fromkeys(
        ("provenance.recipe.checkpoint", "provenance.recipe.run_dir", "provenance.pretraining.recipe.run_dir"), str
    ),
    **dict.fromkeys(("provenance.machine", "provenance.pretraining.machine"), MachineRecord),
    "provenance.text_pairs": bool,
}
"""Keys of a task card that other code reads, and their types. All keys are optional."""


def _check_records(values: Mapping[str, Any]) -> None:
    for path, hint in _RECORDS.items():
        *parents, last = path.split(".")
        record = functools.reduce(lambda found, key: found.get(key, {}), parents, values)
        if last in record:
            read_value(record[last], hint, path)
