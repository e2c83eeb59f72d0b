"""How far a job is, for who watches."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

import rich.console
import rich.progress
from rich.text import Text

WIDE = 90
"""Columns of a terminal that has room for all of a line."""


class Progress:
    """A bar on the terminal, with rows and tokens a second and the time left; nothing elsewhere."""

    def __init__(self, *, shown: bool) -> None:
        self.num_rows = 0
        """Rows that came back in this run."""
        self.num_tokens = self.num_cut = 0
        self._started_s = time.monotonic()
        self._passed = 0.0
        self._message = ""
        self._bar: Any = None
        if shown:
            columns = (
                "{task.description}",
                rich.progress.BarColumn(),
                "{task.percentage:>3.0f}%",
                "{task.fields[told]}",
            )
            console = rich.console.Console(stderr=True)
            self._bar = rich.progress.Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task("bertline", total=1.0, told="")

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def passed(self, share: float) -> None:
        """So much of the input was done before."""
        self._passed = share
        self._show(share)

    def add(self, num_rows: int, num_tokens: int, num_cut: int, share: float) -> None:
        """Rows came back.

        Args:
            num_cut: how many of them were cut.
            share: of all input that is read.
        """
        self.num_rows += num_rows
        self.num_tokens += num_tokens
        self.num_cut += num_cut
        self._show(share)

    def wait(self, message: str) -> None:
        """Tell why nothing happens; empty when it goes on."""
        if message and message != self._message:
            told = f"bertline: waiting: {message}"
            if self._bar:
                self._bar.console.print(Text(told), soft_wrap=True)
            else:
                print(told, file=sys.stderr)
        self._message = message
        if self._bar:
            self._bar.update(self._task, description="waiting" if message else "bertline")

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._started_s

    def rates(self) -> str:
        """Rows, and how fast they came."""
        return ", ".join(self._rates())

    def _rates(self) -> list[str]:
        rows_per_s, tokens_per_s = (count / max(self.seconds, 1e-9) for count in (self.num_rows, self.num_tokens))
        return [f"{self.num_rows:,} rows", f"{rows_per_s:,.0f} rows/s", f"{tokens_per_s:,.0f} tokens/s"]

    def _show(self, share: float) -> None:
        if self._bar:
            told = [*self._rates(), self._left(share)] if self.num_rows else []
            if self._bar.console.width < WIDE:
                del told[2:3]  # tokens: what is cut is the line's end, which people look at
            self._bar.update(self._task, completed=share, told=", ".join(told))

    def _left(self, share: float) -> str:
        done = share - self._passed
        left = int(self.seconds * (1 - share) / done) if done > 0 else 0
        return f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"
