"""Defence against "rapid reset" attacks: connections that begin and cancel many calls, which costs them nothing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from serving.grpc_api.connections import close_connections

MAX_RESETS = 1000
"""Maximum number of calls that a connection cancels within a second. A client that leaves cancels all its calls."""


class Resets:
    """Counts cancelled calls by connection. Lives in one event loop."""

    def __init__(self) -> None:
        self._second = 0
        self._counts: Counter[str] = Counter()

    def add(self, connection: str) -> None:
        """Count a cancelled call, and close its connection if it has cancelled too many."""
        if (second := int(time.monotonic())) != self._second:
            self._second = second
            self._counts.clear()
        self._counts[connection] += 1
        if self._counts[connection] == MAX_RESETS + 1:
            reason = f"it cancelled more than {MAX_RESETS} calls within a second"
            asyncio.get_running_loop().run_in_executor(None, close_connections, {connection: reason})
