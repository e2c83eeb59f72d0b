"""Memory budget for all messages in the server, shared by the connections."""

from __future__ import annotations

from tasks.machine import available_memory_bytes

MEMORY_DIVISOR = 8
"""Divisor of the available memory that gives the default budget."""
MIN_BYTES, MAX_BYTES = 32 * 2**20, 256 * 2**20
"""Bounds of the default. Less would refuse ordinary requests; more is not needed to keep two dozen cores busy."""


class Budget:
    """Memory budget, with the bytes that each connection has reserved. Lives in one event loop.

    A connection may reserve at most as many bytes as are free. Example with a budget of 120 bytes: one connection gets
    at most 60. A second one then gets at most 30, and 30 stay free for others.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.reserved_bytes = 0
        """Bytes that all connections have reserved."""
        self._by_connection: dict[str, int] = {}

    def __getitem__(self, connection: str) -> int:
        """Return the bytes that a connection has reserved."""
        return self._by_connection.get(connection, 0)

    @property
    def free_bytes(self) -> int:
        """Bytes that nobody has reserved."""
        return self.num_bytes - self.reserved_bytes

    def fits(self, connection: str, size: int) -> bool:
        """Return whether a connection may reserve `size` more bytes."""
        return self[connection] + size <= self.free_bytes

    def add(self, connection: str, size: int) -> None:
        """Reserve `size` bytes for a connection; a negative size frees them."""
        self.reserved_bytes += size
        if reserved := self._by_connection.get(connection, 0) + size:
            self._by_connection[connection] = reserved
        else:
            self._by_connection.pop(connection, None)


def default_budget() -> int:
    """Return the default budget in bytes: an eighth of the available memory, within the bounds."""
    return min(max(available_memory_bytes() // MEMORY_DIVISOR, MIN_BYTES), MAX_BYTES)
