"""Memory of requests, from their arrival to the end of their call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from serving.core.budget import CALL_BYTES, Budget
from serving.core.calls import Call
from serving.core.errors import NoRoomError

RETRY_S = 1.0
"""Seconds after which to retry a call that found no room."""


def _no_more_room() -> None:
    """Make no room."""


class RequestMemory:
    """Reserves memory of a budget for calls. Lives in one event loop."""

    def __init__(self, budget: Budget, make_room: Callable[[], None] = _no_more_room) -> None:
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
        fits = partial(self._fits_reply, connection, num_bytes)
        if not fits():
            self._make_room()
        if not await self.budget.fits_soon(fits, num_bytes):
            raise NoRoomError(f"no room for a reply of {num_bytes} bytes; try later", retry_s=RETRY_S)
        self.budget.add(connection, num_bytes)
        return partial(self.budget.add, connection, -num_bytes)

    def _fits_reply(self, connection: str, num_bytes: int) -> bool:
        return not self.budget.reserved_bytes or self.budget.fits(connection, num_bytes)

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
