"""Memory budget for all messages that the server holds, shared by the connections."""

from __future__ import annotations

from tasks.machine import available_memory_bytes

MEMORY_DIVISOR = 8
"""Divisor of the available memory that gives the default budget."""
MIN_BYTES, MAX_BYTES = 32 * 2**20, 256 * 2**20
"""Bounds of the default. Less would refuse ordinary requests; more is not needed to keep two dozen cores busy."""


class Budget:
    """Memory budget, with the bytes that each connection holds. Lives in one event loop.

    A connection may hold at most as many bytes as are free. So connections that take all they can end up with equal
    parts, and there is always room for a small message of another one.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.held = 0
        """Bytes held by all connections."""
        self._by_connection: dict[str, int] = {}

    def __getitem__(self, connection: str) -> int:
        """Return the bytes that a connection holds."""
        return self._by_connection.get(connection, 0)

    @property
    def free(self) -> int:
        """Bytes that are not held."""
        return self.num_bytes - self.held

    def fits(self, connection: str, size: int) -> bool:
        """Return whether a connection may hold `size` more bytes."""
        return self[connection] + size <= self.free

    def add(self, connection: str, size: int) -> None:
        """Hold `size` bytes for a connection; a negative size gives them back."""
        self.held += size
        if held := self._by_connection.get(connection, 0) + size:
            self._by_connection[connection] = held
        else:
            self._by_connection.pop(connection, None)


def default_budget() -> int:
    """Return the default budget in bytes: an eighth of the available memory, within the bounds."""
    return min(max(available_memory_bytes() // MEMORY_DIVISOR, MIN_BYTES), MAX_BYTES)
