"""Cells of the tables of results."""

from __future__ import annotations

from mini.tasks import ScoredTask


def score_name(task: ScoredTask) -> str:
    """Return the name of a task's score."""
    return {"f1_1": "F1", "f1": "F1", "matthews": "Matthews", "spearman": "Spearman"}.get(task.metric, task.metric)


def percent(score: float) -> str:
    """Return a score in percent, with one digit."""
    return f"{100 * score:.1f}"
