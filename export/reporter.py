"""Progress of an export: one line per finished stage, and progress bars for long stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from training.command_line.progress_bar import ProgressBar


@dataclass(frozen=True)
class Reporter:
    """Receiver of the progress of an export."""

    say: Callable[[str], object] = lambda line: None
    """Called with each line."""
    bars: bool = False
    """True to draw progress bars on standard error."""

    def bar(self, label: str, *, unit: str, total: int) -> ProgressBar:
        """Return a progress bar that disappears when it is closed."""
        return ProgressBar(label, unit=unit, total=total, enabled=self.bars, lasting=False)


SILENT = Reporter()
