"""Connections that begin calls and cancel them, again and again ("rapid reset"): that costs them next to nothing."""

from __future__ import annotations

import time
from collections import Counter

from serving.connections import close_connection

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
            close_connection(connection, f"it cancelled more than {MAX_RESETS} calls within a second")
