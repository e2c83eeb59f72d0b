"""Replies that are computed, and that their connections have not read yet: a client may ask and never read."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from serving.budget import Budget
from serving.connections import close_connection

CALL_BYTES = 16 * 1024
"""What a call takes beside its reply, until it is sent."""


class Unread:
    """Bytes that wait, by connection. Lives in one event loop."""

    def __init__(self, budget: Budget, patience_s: float) -> None:
        """Make it.

        Args:
            budget: what replies count against.
            patience_s: a connection that has read nothing for so long is closed where others need the room.
        """
        self._budget = budget
        self._patience_s = patience_s
        self._bytes: dict[str, int] = {}
        self._read_s: dict[str, float] = {}
        """When a connection last read a reply, or began to have some to read."""

    def __getitem__(self, connection: str) -> int:
        """Bytes that wait for a connection."""
        return self._bytes.get(connection, 0)

    def fits(self, connection: str, reply_bytes: int) -> bool:
        """Whether there is room for a reply; one of any size may wait where no other does. Where there is none,
        connections that do not read make room soon."""
        if not self._bytes or self._budget.fits(connection, CALL_BYTES + reply_bytes):
            return True
        self.make_room()
        return False

    def add(self, connection: str, reply_bytes: int) -> None:
        """The call that this task handles has its reply; the task ends when gRPC has sent it, or given it up."""
        size = CALL_BYTES + reply_bytes
        self._read_s.setdefault(connection, time.monotonic())
        self._bytes[connection] = self._bytes.get(connection, 0) + size
        self._budget.add(connection, size)
        task = asyncio.current_task()
        assert task
        task.add_done_callback(partial(self._sent, connection, size))

    def _sent(self, connection: str, size: int, _: object) -> None:
        self._budget.add(connection, -size)
        if left := self._bytes[connection] - size:
            self._bytes[connection], self._read_s[connection] = left, time.monotonic()
        else:
            del self._bytes[connection], self._read_s[connection]

    def make_room(self) -> None:
        """Close the connection that has read nothing for longest, if that is too long."""
        if not self._read_s:
            return
        connection, read_s = min(self._read_s.items(), key=lambda item: item[1])
        if time.monotonic() - read_s > self._patience_s:
            self._read_s[connection] = time.monotonic()
            close_connection(connection, f"{self._bytes[connection] / 2**20:.0f} MiB of replies wait to be read")
