"""A progress bar on a terminal; elsewhere a line now and then."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

WITHOUT_RATE = "{l_bar}{bar}| [{elapsed}<{remaining}{postfix}]"
"""For a share of something: how much of it a second says nothing. What is left follows from all that was done."""
BRIEF_S = 0.5
"""Work that lasts no longer gets no bar, unless a lasting one."""


class ProgressBar:
    """Counts work done, on standard error; leaves the finished bar behind if it is lasting."""

    def __init__(
        self,
        label: str,
        *,
        unit: str,
        total: int | None = None,
        initial: int = 0,
        enabled: bool = True,
        lasting: bool = True,
    ) -> None:
        interval = 0.2 if sys.stderr.isatty() else 15.0
        self._bar: tqdm[Any] = tqdm(
            total=total,
            initial=initial,
            desc=f"{label:<12}",
            unit=unit,
            smoothing=0 if unit == "%" else 0.3,
            unit_scale=unit in ("token", "byte"),
            bar_format=WITHOUT_RATE if unit == "%" else None,
            disable=not enabled,
            mininterval=interval,
            maxinterval=interval,
            dynamic_ncols=True,
            leave=lasting,
            delay=0 if lasting else BRIEF_S,
        )

    def update(self, count: int) -> None:
        """Add finished work."""
        self._bar.update(count)

    def note(self, text: str) -> None:
        """Say something at the end of the bar, from its next drawing on."""
        self._bar.set_postfix_str(text, refresh=False)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.close()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
