"""Work that would stall the event loop is done beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

SMALL_BYTES = 1024
"""What is smaller is handled on the event loop: in well under a millisecond, and without the switch of threads."""
SEQUENCE_BYTES = 64
"""A sequence is as much work as so many bytes of text, however short it is."""
NUM_THREADS = 2
"""For larger ones, so that one of them does not keep all the others waiting."""

T = TypeVar("T")


class Offload:
    """Calls functions in threads, where they have much to do."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="codec")

    def close(self) -> None:
        """End the threads; again is fine."""
        self._threads.shutdown()

    async def __call__(
        self,
        size: int,
        function: Callable[[], T],
        undo: Callable[[Future[T]], None] = lambda found: None,
        small: int = SMALL_BYTES,
    ) -> T:
        """Call a function, in a thread where what it works on is not small, so that the event loop never stalls.

        Args:
            size: bytes of a request, or of a request that is as much work.
            undo: is given what the function does after all when the call was cancelled meanwhile.
            small: up to how many bytes it is called at once.
        """
        if size <= small:
            return function()
        found = self._threads.submit(function)
        try:
            return await asyncio.wrap_future(found)
        except asyncio.CancelledError:
            found.add_done_callback(undo)
            raise
