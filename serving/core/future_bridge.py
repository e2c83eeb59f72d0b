"""Futures of worker threads, awaited in an event loop that wakes up once for all that are done."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from serving.core.errors import UnavailableError

T = TypeVar("T")


class FutureBridge:
    """Awaits concurrent futures like `asyncio.wrap_future`, but a batch of several calls wakes the loop only once."""

    def __init__(self) -> None:
        self._waiters: deque[asyncio.Future[None]] = deque()
        """Waiters whose futures are done."""
        self._is_woken = False

    async def wait(self, future: Future[T]) -> T:
        """Return the result of a future. Cancel the future when the caller is cancelled.

        Raises:
            UnavailableError: when the future was cancelled because the server ends.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        future.add_done_callback(lambda _: self._done(loop, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            future.cancel()
            raise
        if future.cancelled():
            raise UnavailableError("the server ends; send the request to another one")
        return future.result()

    def _done(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[Any]) -> None:
        """Wake the loop, from any thread."""
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
