"""Progress bar on a terminal; elsewhere, a line every 15 seconds."""

from __future__ import annotations

import sys

from tqdm import tqdm

_WITHOUT_RATE = "{l_bar}{bar}| [{elapsed}<{remaining}{postfix}]"
"""Format of bars in percent, without a rate per second."""


class ProgressBar(tqdm):
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
        super().__init__(
            total=total,
            initial=initial,
            desc=f"{label:<12}",
            unit=unit,
            smoothing=0 if unit == "%" else 0.3,
            unit_scale=unit in ("token", "byte", "word"),
            bar_format=_WITHOUT_RATE if unit == "%" else None,
            disable=not enabled,
            mininterval=interval,
            maxinterval=interval,
            dynamic_ncols=True,
            leave=lasting,
            delay=0 if lasting else 0.5,  # a brief bar that is removed at the end would only flicker
        )

    def note(self, text: str) -> None:
        """Show a text at the end of the bar, from its next update on."""
        self.set_postfix_str(text, refresh=False)
