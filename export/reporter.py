"""What an export says while it works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from training.progress_bar import ProgressBar


@dataclass(frozen=True)
class Stages:
    """A line when a stage is done; bars while the long ones are under way."""

    say: Callable[[str], object] = lambda line: None
    """Takes each line."""
    bars: bool = False
    """Draw them, on standard error."""

    def bar(self, label: str, *, unit: str, total: int) -> ProgressBar:
        """One that vanishes when it is closed."""
        return ProgressBar(label, unit=unit, total=total, enabled=self.bars, lasting=False)


SILENT = Stages()
