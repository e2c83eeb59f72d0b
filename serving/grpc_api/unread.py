"""Memory of replies that their connections have not read yet: a client may send requests and never read replies."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from serving.core.budget import CALL_BYTES, Budget
from serving.grpc_api.connections import close_connections

CHECK_S = 1.0
"""Minimum seconds between two searches for connections that do not read."""


class UnreadReplies:
    """Bytes of unread replies, by connection. Lives in one event loop."""

    def __init__(self, budget: Budget, patience_s: float) -> None:
        """Start without replies.

        Args:
            budget: budget that unread replies count against.
            patience_s: seconds after which a connection with an unread reply is closed, if others need the memory.
        """
        self._budget = budget
        self._patience_s = patience_s
        self._bytes: dict[str, int] = {}
        self._replies: dict[str, dict[asyncio.Task[None], float]] = {}
        """Tasks of the calls whose replies are unread, by connection, and when each was added; oldest first."""
        self._checked_s = -CHECK_S

    def __getitem__(self, connection: str) -> int:
        """Return the bytes that a connection has not read."""
        return self._bytes.get(connection, 0)

    def fits(self, connection: str, reply_bytes: int) -> bool:
        """Return whether a reply may wait for its connection.

        The unread replies of a connection may take as many bytes as are free. If no reply is unread, one of any size
        fits. If too few bytes are free, connections that do not read are closed, which soon frees some.
        """
        if not self._bytes or self[connection] + CALL_BYTES + reply_bytes <= self._budget.free_bytes:
            return True
        self.make_room()
        return False

    async def fits_soon(self, connection: str, reply_bytes: int) -> bool:
        """Return whether a reply may wait for its connection. A small one waits for memory."""
        return await self._budget.fits_soon(partial(self.fits, connection, reply_bytes), reply_bytes)

    def add(self, connection: str, reply_bytes: int) -> None:
        """Count the reply of the current task's call until the task ends: then gRPC has sent it, or given it up."""
        size = CALL_BYTES + reply_bytes
        self._bytes[connection] = self[connection] + size
        self._budget.add(connection, size)
        task = asyncio.current_task()
        assert task
        self._replies.setdefault(connection, {})[task] = time.monotonic()
        task.add_done_callback(partial(self._sent, connection, size))

    def _sent(self, connection: str, size: int, task: asyncio.Task[None]) -> None:
        self._budget.add(connection, -size)
        self._bytes[connection] -= size
        del self._replies[connection][task]
        if not self._replies[connection]:
            del self._bytes[connection], self._replies[connection]

    def make_room(self) -> None:
        """Close the connections that have left a reply unread for too long."""
        now_s = time.monotonic()
        if now_s < self._checked_s + CHECK_S:
            return
        self._checked_s = now_s
        reasons = {
            connection: f"{self._bytes[connection] / 2**20:.0f} MiB of replies wait to be read"
            for connection, replies in self._replies.items()
            if now_s - next(iter(replies.values())) > self._patience_s
        }
        if reasons:
            asyncio.get_running_loop().run_in_executor(None, close_connections, reasons)
