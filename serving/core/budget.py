"""Memory budget for all messages in the server, shared by the connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

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
        self._waiting: dict[asyncio.Future[None], None] = {}
        """Calls that wait for memory, in order."""

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
        if size < 0:
            self._wake_one()
        if reserved := self._by_connection.get(connection, 0) + size:
            self._by_connection[connection] = reserved
        else:
            self._by_connection.pop(connection, None)

    async def wait_until(self, fits: Callable[[], bool], timeout_s: float) -> bool:
        """Return whether `fits` is true, now or within seconds, as others free memory. Waiting calls take turns."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not fits():
                    await self._next_turn()
                return True
        return fits()

    async def _next_turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = None
        try:
            await turn
        finally:
            self._waiting.pop(turn, None)

    def _wake_one(self) -> None:
        while turn := next(iter(self._waiting), None):
            del self._waiting[turn]
            if not turn.done():  # else it has timed out
                turn.set_result(None)
                return


def default_budget() -> int:
    """Return the default budget in bytes: an eighth of the available memory, within the bounds."""
    return min(max(available_memory_bytes() // MEMORY_DIVISOR, MIN_BYTES), MAX_BYTES)
