"""Task card of a checkpoint: `task.json`, with its task, settings, scores and provenance; and its licence."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tasks import AnyTask, settings_from_dict, settings_to_dict
from tasks.base import TaskSettings
from tasks.bundle.manifest import space_of
from tasks.schema import read_fields
from tasks.text.json_files import read_json

TASK_FILE = "task.json"
CARD_FILE = "README.md"
"""Model card, for people."""
_LICENCE = re.compile(r"^license:\s*[\"']?([\w.+-]+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class TaskCard:
    """Task, settings, scores and origin of a checkpoint."""

    task: str
    settings: TaskSettings
    scores: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Recipe, digests of the data, starting checkpoint and versions. `pretraining` has the same for pretraining;
    `before` has it for an earlier stage of the same kind. `space`: that of the teacher whose vectors it learnt."""

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
        return TaskCard(**fields | {"settings": settings_from_dict(fields["task"], fields["settings"])})
    except ValueError as error:
        raise ValueError(f"broken task card `{path}`: {error}") from error


def space_of_vectors(card: TaskCard | None, task: AnyTask, weights: str) -> str:
    """Return the space of a checkpoint's vectors: that of the teacher whose vectors it learnt, or its own.

    Args:
        card: card of the checkpoint, if it has one.
        task: task of the vectors; one with other settings than in the card has a space of its own.
        weights: digest of the weights.
    """
    own = space_of(task, weights)
    if card and card.task == task.name and own == space_of(replace(task, settings=card.settings), weights):
        return str(card.provenance.get("space", own))
    return own


def read_licence(directory: Path) -> str:
    """Return the licence in the metadata of a model card or, of a checkpoint that we trained, of what it started from.

    Empty if none is stated. The licence of data is not known here.
    """
    path = directory / CARD_FILE
    parts = path.read_text(encoding="utf-8", errors="replace").split("---\n", 2) if path.is_file() else []
    if len(parts) == 3 and not parts[0].strip() and (stated := _LICENCE.search(parts[1])):
        return stated[1]
    card = read_task_card(directory)
    return str(card.provenance.get("checkpoint", {}).get("licence", "")) if card else ""
