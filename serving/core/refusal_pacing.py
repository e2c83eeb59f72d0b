"""Pacing of refusals: callers that retry immediately must not keep the event loop busy."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

RATE = 100.0
"""Refusals per second that are sent without delay. Beyond it, callers that are refused repeatedly have to wait."""
MAX_DELAY_S = 2.0
"""Longest delay of a refusal; also the time for which a caller counts as recently refused."""
MARGIN_S = 0.05
"""Seconds before the deadline of its call at which a delayed refusal is sent, so that it arrives in time."""
MAX_DELAYED = 1000
"""Maximum number of refusals that are delayed at the same time. Further ones are sent immediately."""


class RefusalPacer:
    """Delays refusals to callers that retry too fast, and spreads them over time. Lives in one event loop."""

    def __init__(self) -> None:
        self._next_s = 0.0
        """Time at which all refusals so far would have been sent at RATE; from a second ago to MAX_DELAY_S ahead."""
        self._last_s: OrderedDict[str, float] = OrderedDict()
        """Time at which each caller was last refused, latest last."""
        self._num_delayed = 0

    async def wait(self, caller: str, remaining_s: float | None) -> None:
        """Wait until a refusal may be sent.

        Args:
            caller: token or connection.
            remaining_s: seconds until the deadline of the call; None for a call without one.
        """
        now_s = asyncio.get_running_loop().time()
        was_refused = self._was_refused(caller, now_s)
        self._next_s = min(max(self._next_s, now_s - 1.0) + 1 / RATE, now_s + MAX_DELAY_S)
        delay_s = min(MAX_DELAY_S, self._next_s - now_s)
        if remaining_s is not None:
            delay_s = min(delay_s, remaining_s - MARGIN_S)
        if not was_refused or delay_s <= 0 or self._num_delayed >= MAX_DELAYED:
            return
        self._num_delayed += 1
        try:
            await asyncio.sleep(delay_s)
        finally:
            self._num_delayed -= 1

    def _was_refused(self, caller: str, now_s: float) -> bool:
        """Return whether a caller was refused recently, and record that it is refused now."""
        while self._last_s and next(iter(self._last_s.values())) < now_s - MAX_DELAY_S:
            self._last_s.popitem(last=False)
        was_refused = caller in self._last_s
        self._last_s[caller] = now_s
        self._last_s.move_to_end(caller)
        return was_refused
