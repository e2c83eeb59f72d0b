"""Futures of worker threads, awaited by an event loop that is woken once for all that have come meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from serving.core.errors import UnavailableError

T = TypeVar("T")


class Arrivals:
    """What `asyncio.wrap_future` does, but a batch of several calls wakes the loop once."""

    def __init__(self) -> None:
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._is_woken = False

    async def wait(self, future: Future[T]) -> T:
        """The result of a future, which is cancelled when the caller is.

        Raises:
            UnavailableError: when it was cancelled because the server ends.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        future.add_done_callback(lambda _: self._arrived(loop, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            future.cancel()
            raise
        if future.cancelled():
            raise UnavailableError("the server ends; send it to another")
        return future.result()

    def _arrived(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[Any]) -> None:
        """In any thread."""
        self._waiters.append(waiter)
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                loop.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        self._is_woken = False
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
