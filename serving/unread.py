"""Replies that are computed, and that their connections have not read yet: a client may ask and never read."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

CALL_BYTES = 16 * 1024
"""What a call takes beside its reply, until it is sent."""


class Unread:
    """Bytes that wait, by connection. Lives in one event loop."""

    def __init__(self) -> None:
        self._bytes: Counter[str] = Counter()

    def __getitem__(self, connection: str) -> int:
        """Bytes that wait for a connection."""
        return self._bytes[connection]

    def add(self, connection: str, reply_bytes: int) -> None:
        """The call that this task handles has its reply; the task ends when gRPC has sent it, or given it up."""
        size = CALL_BYTES + reply_bytes
        self._bytes[connection] += size
        task = asyncio.current_task()
        assert task
        task.add_done_callback(partial(self._sent, connection, size))

    def _sent(self, connection: str, size: int, _: object) -> None:
        self._bytes[connection] -= size
        if not self._bytes[connection]:
            del self._bytes[connection]
