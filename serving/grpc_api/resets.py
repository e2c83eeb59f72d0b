"""Defence against "rapid reset": connections that begin and cancel calls again and again, which costs them nothing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from serving.grpc_api.connections import close_connections

MAX_RESETS = 1000
"""Calls that a connection may cancel within a second; a client that leaves cancels all that it has under way."""


class Resets:
    """Counts cancelled calls. Lives in one event loop."""

    def __init__(self) -> None:
        self._second = 0
        self._counts: Counter[str] = Counter()

    def add(self, connection: str) -> None:
        """Count a call that its client cancelled; close a connection that cancels too many."""
        if (second := int(time.monotonic())) != self._second:
            self._second = second
            self._counts.clear()
        self._counts[connection] += 1
        if self._counts[connection] == MAX_RESETS + 1:
            reason = f"it cancelled more than {MAX_RESETS} calls within a second"
            asyncio.get_running_loop().run_in_executor(None, close_connections, {connection: reason})
