"""Progress of a job: a bar on a terminal, a line a minute elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

import rich.console
import rich.progress
from rich.text import Text

INTERVAL_S = 60.0
"""Time between two lines of progress without a terminal."""
WIDE = 90
"""Width of a terminal that has room for a whole line, in columns."""


class Progress:
    """Counters of a run; shows nothing."""

    def __init__(self) -> None:
        self.num_rows = 0
        """Rows that came back in this run."""
        self.num_skipped = 0
        """Rows that earlier runs have done."""
        self.num_tokens = 0
        self._started_s = time.monotonic()
        self._skipped_fraction = 0.0
        self._reason = ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop the display."""

    @property
    def seconds(self) -> float:
        """Seconds since the start of this run."""
        return time.monotonic() - self._started_s

    def skip(self, num_rows: int, fraction: float) -> None:
        """Count rows that an earlier run has done.

        Args:
            fraction: fraction of all input up to these rows.
        """
        self.num_skipped += num_rows
        self._skipped_fraction = fraction
        self._show(fraction)

    def add(self, num_rows: int, num_tokens: int, fraction: float) -> None:
        """Count rows that came back.

        Args:
            fraction: fraction of all input up to these rows.
        """
        self.num_rows += num_rows
        self.num_tokens += num_tokens
        self._show(fraction)

    def wait(self, reason: str) -> None:
        """Show why the job waits; empty when it goes on."""
        if reason and reason != self._reason:
            self._print(f"bertline: waiting: {reason}")
        self._reason = reason

    def rates(self) -> list[str]:
        """Return rows and tokens per second of this run."""
        seconds = max(self.seconds, 1e-9)
        return [f"{self.num_rows / seconds:,.0f} rows/s", f"{self.num_tokens / seconds:,.0f} tokens/s"]

    def _counts(self, fraction: float) -> list[str]:
        done = fraction - self._skipped_fraction
        left_s = self.seconds * (1 - fraction) / done if done > 0 else 0
        return [f"{self.num_skipped + self.num_rows:,} rows", *self.rates(), f"{duration(left_s)} left"]

    def _print(self, message: str) -> None:
        print(message, file=sys.stderr)

    def _show(self, fraction: float) -> None:
        """Update the display."""


class ProgressLines(Progress):
    """One line a minute on standard error, for logs of cron and nohup."""

    def __init__(self) -> None:
        super().__init__()
        self._printed_s = self._started_s

    def _show(self, fraction: float) -> None:
        if time.monotonic() - self._printed_s < INTERVAL_S or not self.num_rows:
            return
        self._printed_s = time.monotonic()
        *counts, time_left = self._counts(fraction)
        if fraction:  # unknown for standard input
            counts = [f"{fraction:.0%}", *counts, time_left]
        self._print(f"bertline: {', '.join(counts)}")


class ProgressBar(Progress):
    """Bar on the terminal, with rows and tokens a second and the time left."""

    def __init__(self) -> None:
        super().__init__()
        columns = ("{task.description}", rich.progress.BarColumn(), "{task.percentage:>3.0f}%", "{task.fields[counts]}")
        self._bar = rich.progress.Progress(*columns, console=rich.console.Console(stderr=True), transient=True)
        self._task = self._bar.add_task("bertline", total=1.0, counts="")

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.stop()

    def wait(self, reason: str) -> None:
        """See Progress."""
        super().wait(reason)
        self._bar.update(self._task, description="waiting" if reason else "bertline")

    def _print(self, message: str) -> None:
        self._bar.console.print(Text(message), soft_wrap=True)

    def _show(self, fraction: float) -> None:
        counts = self._counts(fraction) if self.num_rows else []
        if self._bar.console.width < WIDE:
            del counts[2:3]  # leave out tokens/s: the end of the line would be cut, which is the time left
        self._bar.update(self._task, completed=fraction, counts=", ".join(counts))


def duration(seconds: float) -> str:
    """Format a duration as hours:minutes:seconds."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
