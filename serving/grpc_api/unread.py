"""Accounting of replies that their connections have not read yet: a client may ask and never read."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from serving.core.budget import Budget
from serving.grpc_api.connections import close_connections

CALL_BYTES = 16 * 1024
"""Memory of a call beside its reply, until the reply is sent."""
LOOK_S = 1.0
"""How often connections that do not read are looked for, at most."""


class Unread:
    """Bytes of unread replies, by connection. Lives in one event loop."""

    def __init__(self, budget: Budget, patience_s: float) -> None:
        """Make it.

        Args:
            budget: what replies count against.
            patience_s: a connection that has left a reply unread for so long is closed where others need the room.
        """
        self._budget = budget
        self._patience_s = patience_s
        self._bytes: dict[str, int] = {}
        self._replies: dict[str, dict[asyncio.Task[None], float]] = {}
        """Tasks of the calls that wait for a connection, oldest first, and since when they do."""
        self._looked_s = -LOOK_S

    def __getitem__(self, connection: str) -> int:
        """Bytes that wait for a connection."""
        return self._bytes.get(connection, 0)

    def fits(self, connection: str, reply_bytes: int) -> bool:
        """Whether a reply of so many bytes may wait for a connection: all its unread replies together may take as many
        bytes as are free. One reply of any size may wait where no other does. Where there is no room, connections that
        do not read make some soon."""
        if not self._bytes or self[connection] + CALL_BYTES + reply_bytes <= self._budget.free:
            return True
        self.make_room()
        return False

    def add(self, connection: str, reply_bytes: int) -> None:
        """Count the reply of the call that this task handles, until the task ends: gRPC has sent it, or given it up."""
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
        if now_s < self._looked_s + LOOK_S:
            return
        self._looked_s = now_s
        late = {
            connection: f"{self._bytes[connection] / 2**20:.0f} MiB of replies wait to be read"
            for connection, replies in self._replies.items()
            if now_s - next(iter(replies.values())) > self._patience_s
        }
        if late:
            asyncio.get_running_loop().run_in_executor(None, close_connections, late)
