"""Memory budget for all messages in the server, shared by the connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tasks.machine import available_memory_bytes

MEMORY_DIVISOR = 8
"""Divisor of the available memory that gives the default budget."""
MIN_BYTES, MAX_BYTES = 32 * 2**20, 256 * 2**20
"""Bounds of the default. Less would refuse ordinary requests; more is not needed to keep two dozen cores busy."""
MAX_WAITING = 1024
"""Maximum number of calls that wait for memory: 16 MiB of small ones."""
WAIT_S = 1.0
"""Maximum seconds that a small call waits for memory."""
CALL_BYTES = 16 * 1024
"""Memory of a call besides its reply, until the reply is sent. Requests and replies up to this size are small."""
STEP_S = 0.02
"""Seconds between looks for free memory. Waking calls as memory is freed would cost more in a burst of thousands."""


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
        self._num_waiting = 0

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

    async def fits_soon(self, fits: Callable[[], bool], num_bytes: int) -> bool:
        """Return whether `fits()` is true. A small request or reply waits up to `WAIT_S` for it.

        Args:
            fits: returns whether there is memory for the request or reply.
            num_bytes: size of the request or reply.
        """
        return await self.wait_until(fits, WAIT_S if num_bytes <= CALL_BYTES else 0)

    async def wait_until(self, fits: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `fits()` is true, at most `timeout_s` seconds; return whether it is.

        At most `MAX_WAITING` calls wait, since what they hold is not reserved; for others the answer is immediate.
        """
        if fits():
            return True
        if self._num_waiting >= MAX_WAITING:
            return False
        ends_s = time.monotonic() + timeout_s
        self._num_waiting += 1
        try:
            while time.monotonic() < ends_s:
                await asyncio.sleep(STEP_S)
                if fits():
                    return True
        finally:
            self._num_waiting -= 1
        return False


def default_budget() -> int:
    """Return the default budget in bytes: an eighth of the available memory, within the bounds."""
    return min(max(available_memory_bytes() // MEMORY_DIVISOR, MIN_BYTES), MAX_BYTES)
