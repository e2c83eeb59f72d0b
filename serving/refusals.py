"""Pace of refusals: callers that ask again at once, whatever they are told, must not keep the event loop busy."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

RATE = 100.0
"""Refusals a second that are sent at once."""
HOLD_S = 1.0
"""So long a refusal beyond that rate is held back, if its caller was refused within as long before."""
MARGIN_S = 0.05
"""A held refusal is sent so long before the deadline of its call, so that it comes in time."""
MAX_HELD = 1000
"""Refusals that may be held at one time; more are sent at once."""


class Refusals:
    """Holds back refusals to callers that ask too often. Lives in one event loop."""

    def __init__(self) -> None:
        self._left, self._counted_s = RATE, 0.0
        """Refusals that may be sent at once, and when that was last counted."""
        self._last_s: OrderedDict[str, float] = OrderedDict()
        """When each caller was last refused, latest last."""
        self._num_held = 0

    async def pace(self, caller: str, remaining_s: float | None) -> None:
        """Wait until a refusal may be sent.

        Args:
            remaining_s: seconds until the deadline of the call; None for a call without one.
        """
        now_s = asyncio.get_running_loop().time()
        if not self._is_too_often(caller, now_s) or self._num_held >= MAX_HELD:
            return
        hold_s = HOLD_S if remaining_s is None else min(HOLD_S, remaining_s - MARGIN_S)
        if hold_s > 0:
            self._num_held += 1
            try:
                await asyncio.sleep(hold_s)
            finally:
                self._num_held -= 1

    def _is_too_often(self, caller: str, now_s: float) -> bool:
        self._left = min(RATE, self._left + RATE * (now_s - self._counted_s))
        self._counted_s = now_s
        while self._last_s and next(iter(self._last_s.values())) < now_s - HOLD_S:
            self._last_s.popitem(last=False)
        is_known = caller in self._last_s
        self._last_s[caller] = now_s
        self._last_s.move_to_end(caller)
        if self._left >= 1 or not is_known:
            self._left = max(0.0, self._left - 1)
            return False
        return True
