"""Connections that do harm: their replies wait unread, or they cancel many calls. They are closed by their names.

The Python API of gRPC can end calls, but not connections.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from serving.core.calls import connection_name
from serving.core.request_memory import CALL_BYTES, Budget

logger = logging.getLogger(__name__)

CHECK_S = 1.0
"""Minimum seconds between two searches for connections that do not read."""
MAX_RESETS = 1000
"""Number of calls that a connection may cancel at once. A client that leaves cancels all its calls."""
RESETS_PER_S = 200
"""Number of further calls that it may cancel a second. A slow server, too, must see that there are too many."""
_FILES = Path("/proc/self/fd")


def close_connections(reasons: Mapping[str, str]) -> None:
    """Close the connections to some peers, which ends their calls, and log the reasons. Does nothing except on Linux.

    Takes some microseconds for each open file: call it in a thread.

    Args:
        reasons: connection, named as by `connection_name` -> reason.
    """
    for peer, connection in open_connections():
        if reason := reasons.get(peer):
            connection.shutdown(socket.SHUT_RDWR)
            logger.warning("closed the connection of %s: %s", peer, reason)


def open_connections() -> Iterator[tuple[str, socket.socket]]:
    """Yield the TCP connections of this process with their peers, as `connection_name` names them; only on Linux."""
    numbers: list[int] = []
    with suppress(OSError):  # not Linux, or too many open files
        numbers = [int(item.name) for item in _FILES.iterdir()]
    for number in numbers:
        with suppress(OSError):  # closed in the meantime
            if not stat.S_ISSOCK(os.fstat(number).st_mode):  # `socket.socket` would fail, and the copy stay open
                continue
            with socket.socket(fileno=os.dup(number)) as connection:
                if connection.type == socket.SOCK_STREAM and connection.family in (socket.AF_INET, socket.AF_INET6):
                    yield connection_name(*connection.getpeername()[:2]), connection


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

    def add(self, connection: str, reply_bytes: int) -> None:
        """Count the reply of the current task's call until the task ends: then gRPC has sent it, or given it up."""
        size = CALL_BYTES + reply_bytes
        self._bytes[connection] = self[connection] + size
        self._budget.add(connection, size)
        task = asyncio.current_task()
        assert task
        replies = self._replies.setdefault(connection, {})
        replies[task] = time.monotonic()

        def sent(task: asyncio.Task[None]) -> None:
            self._budget.add(connection, -size)
            self._bytes[connection] -= size
            del replies[task]
            if not replies:
                del self._bytes[connection], self._replies[connection]

        task.add_done_callback(sent)

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


class Resets:
    """Counts cancelled calls by connection. Lives in one event loop."""

    def __init__(self) -> None:
        self._second = 0
        self._counts: Counter[str] = Counter()

    def add(self, connection: str) -> None:
        """Count a cancelled call, and close its connection if it has cancelled too many."""
        if (second := int(time.monotonic())) != self._second:
            forgiven = (second - self._second) * RESETS_PER_S
            self._counts = Counter({name: count - forgiven for name, count in self._counts.items() if count > forgiven})
            self._second = second
        self._counts[connection] += 1
        if self._counts[connection] == MAX_RESETS + 1:
            reason = f"it cancelled more than {MAX_RESETS} calls, and {RESETS_PER_S} a second"
            asyncio.get_running_loop().run_in_executor(None, close_connections, {connection: reason})
