"""Budget of bytes for all messages that the server holds, shared by the connections."""

from __future__ import annotations

from tasks.machine import available_memory_bytes

PART = 8
"""The default budget is the memory divided by this."""
LEAST_BYTES, MOST_BYTES = 32 * 2**20, 256 * 2**20
"""Bounds of the default: less refuses ordinary requests, more is not needed to keep two dozen cores busy."""


class Budget:
    """Bytes that are held, by connection. Lives in one event loop.

    A connection may hold as much as remains free: many greedy ones end up with equal parts, and there is always room
    for the small message of another.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.held = 0
        """Bytes of all connections."""
        self._by_connection: dict[str, int] = {}

    def __getitem__(self, connection: str) -> int:
        """Bytes that a connection holds."""
        return self._by_connection.get(connection, 0)

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        return self.num_bytes - self.held

    def fits(self, connection: str, size: int) -> bool:
        """Whether a connection may hold so many bytes more."""
        return self[connection] + size <= self.free

    def add(self, connection: str, size: int) -> None:
        """Hold bytes, or with a negative size give them back."""
        self.held += size
        if held := self._by_connection.get(connection, 0) + size:
            self._by_connection[connection] = held
        else:
            self._by_connection.pop(connection, None)


def default_budget() -> int:
    """Return the budget that applies where no setting gives one."""
    return min(max(available_memory_bytes() // PART, LEAST_BYTES), MOST_BYTES)
