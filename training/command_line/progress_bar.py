"""Progress bar on a terminal; elsewhere, a line every 15 seconds."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

WITHOUT_RATE = "{l_bar}{bar}| [{elapsed}<{remaining}{postfix}]"
"""Format of bars in percent, without a rate per second."""
BRIEF_S = 0.5
"""Seconds before a bar appears that is removed at the end."""


class ProgressBar:
    """Progress bar on standard error; stays when finished if it is lasting."""

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
            unit_scale=unit in ("token", "byte", "word"),
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
        """Show a text at the end of the bar, from its next update on."""
        self._bar.set_postfix_str(text, refresh=False)

    def close(self) -> None:
        """Close the bar."""
        self._bar.close()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
