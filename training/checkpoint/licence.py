"""Licence of a checkpoint, if its files state one."""

from __future__ import annotations

import re
from pathlib import Path

from training.checkpoint.task_card import CARD_FILE, read_task_card

_LICENCE = re.compile(r"^license:\s*[\"']?([\w.+-]+)", re.MULTILINE)


def read_licence(directory: Path) -> str:
    """Return the licence in the metadata of a model card or, of a checkpoint that we trained, of what it started from.

    Empty if none is stated. The licence of data is not known here.
    """
    path = directory / CARD_FILE
    parts = path.read_text(encoding="utf-8", errors="replace").split("---\n", 2) if path.is_file() else []
    stated = _LICENCE.search(parts[1]) if len(parts) == 3 and not parts[0].strip() else None
    if stated:
        return stated[1]
    card = read_task_card(directory)
    start = card.provenance.get("checkpoint", {}) if card else {}
    licence = start.get("licence", "") if isinstance(start, dict) else ""
    return licence if isinstance(licence, str) else ""
