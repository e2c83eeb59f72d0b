"""Memory of messages: one budget for all connections, and what each call has reserved of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from serving.core.calls import Call
from serving.core.errors import RETRY_S, NoRoomError
from tasks.bundle.machine import available_memory_bytes

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

        At most `MAX_WAITING` calls wait, since what they hold is not reserved; for others the answer is immediate.

        Args:
            fits: returns whether there is memory for the request or reply.
            num_bytes: size of the request or reply.
        """
        may_wait = num_bytes <= CALL_BYTES and self._num_waiting < MAX_WAITING
        ends_s = time.monotonic() + (WAIT_S if may_wait else 0)
        self._num_waiting += 1
        try:
            while not (found := fits()) and time.monotonic() < ends_s:
                await asyncio.sleep(STEP_S)
            return found
        finally:
            self._num_waiting -= 1


def default_budget() -> int:
    """Return the default budget in bytes: an eighth of the available memory, within the bounds."""
    return min(max(available_memory_bytes() // MEMORY_DIVISOR, MIN_BYTES), MAX_BYTES)


class RequestMemory:
    """Reserves memory of a budget for calls. Lives in one event loop."""

    def __init__(self, budget: Budget, make_room: Callable[[], None] = lambda: None) -> None:
        """Set the budget.

        Args:
            budget: memory budget of all requests.
            make_room: called when a reservation fails, so that the next one may succeed.
        """
        self.budget = budget
        self._make_room = make_room

    def open(self, call: Call) -> None:
        """Allow a call to reserve memory until `close`."""
        call.reserve_memory = partial(self._reserve, call)

    async def reserve(self, call: Call, num_bytes: int) -> None:
        """Reserve bytes of a request until `close`. A small request waits for memory.

        Raises:
            NoRoomError: when the bytes do not fit.
        """
        await self.budget.fits_soon(partial(self.budget.fits, call.connection, 2 * CALL_BYTES), num_bytes)
        call.reserve_memory(num_bytes)

    def close(self, call: Call) -> None:
        """Free what a call has reserved."""
        if call.reserved_bytes:
            self.budget.add(call.connection, -call.reserved_bytes)
            call.reserved_bytes = 0

    async def hold(self, connection: str, num_bytes: int) -> Callable[[], None]:
        """Reserve bytes for a reply that a connection has not read yet; return the function that frees them.

        If nothing else is in memory, a reply of any size fits. A small reply waits for memory.

        Raises:
            NoRoomError: when the bytes do not fit.
        """

        def fits() -> bool:
            return not self.budget.reserved_bytes or self.budget.fits(connection, num_bytes)

        if not fits():
            self._make_room()
        if not await self.budget.fits_soon(fits, num_bytes):
            raise NoRoomError(f"no room for a reply of {num_bytes} bytes; try later", retry_s=RETRY_S)
        self.budget.add(connection, num_bytes)
        return partial(self.budget.add, connection, -num_bytes)

    def _reserve(self, call: Call, num_bytes: int) -> None:
        """Reserve bytes for a call. If no other request is in memory, one of any size fits.

        Raises:
            NoRoomError: when the bytes do not fit.
        """
        if self.budget.reserved_bytes > call.reserved_bytes and not self.budget.fits(call.connection, num_bytes):
            self._make_room()
            raise NoRoomError(
                f"no room for {num_bytes} bytes of a request beside others of its connection; try later, or send "
                "fewer requests at a time",
                retry_s=RETRY_S,
            )
        self.budget.add(call.connection, num_bytes)
        call.reserved_bytes += num_bytes
