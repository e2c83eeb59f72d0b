"""Progress of an export: one line a finished stage, and progress bars for the long ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from training.progress_bar import ProgressBar


@dataclass(frozen=True)
class Reporter:
    """Where an export reports its progress."""

    say: Callable[[str], object] = lambda line: None
    """Called with each line."""
    bars: bool = False
    """True to draw progress bars on standard error."""

    def bar(self, label: str, *, unit: str, total: int) -> ProgressBar:
        """Return a progress bar that disappears when it is closed."""
        return ProgressBar(label, unit=unit, total=total, enabled=self.bars, lasting=False)


SILENT = Reporter()
