"""Work that would stall the event loop is done beside it."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from serving.calls import Call, Stage, current_call
from serving.scheduler import QueueFullError

SMALL_BYTES = 1024
"""What is smaller is handled on the event loop: in well under a millisecond, and without the switch of threads."""
SEQUENCE_BYTES = 64
"""A sequence is as much work as so many bytes of text, however short it is."""
NUM_THREADS = 2
"""For larger ones, so that one of them does not keep all the others waiting."""
RETRY_S = 1.0
"""What is refused since too much waits may be tried again after so long."""

T = TypeVar("T")


class Offload:
    """Calls functions in threads, where they have much to do; in their order."""

    def __init__(
        self, name: str, num_threads: int, waited: Callable[[str, float], None], *, max_size: float = math.inf
    ) -> None:
        """Make it.

        Args:
            name: of the threads.
            waited: is told of each wait for one of them: that name, and seconds. Called in that thread.
            max_size: while calls of so many bytes wait or are under way, more are refused.
        """
        self._name, self._waited, self._max_size = name, waited, max_size
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._size = 0
        """Of calls that wait or are under way; only the event loop changes it."""
        self._busy: set[int] = set()
        """Threads that work, be it that nobody waits for it any more."""

    @property
    def is_busy(self) -> bool:
        """Whether a thread works: nothing can end that before it is done."""
        return bool(self._busy)

    def close(self) -> None:
        """Begin nothing more, and end the threads, those that work when they are done; again is fine."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def __call__(
        self,
        size: int,
        function: Callable[[], T],
        undo: Callable[[Future[T]], None] = lambda found: None,
        small: int = SMALL_BYTES,
    ) -> T:
        """Call a function, in a thread where what it works on is not small, so that the event loop never stalls. The
        wait for that thread is a stage of the call.

        Args:
            size: bytes of a request, or of a request that is as much work.
            undo: is given what the function does after all when the call was cancelled meanwhile.
            small: up to how many bytes it is called at once.

        Raises:
            QueueFullError: when too much waits already.
        """
        if size <= small:
            return function()
        if self._size >= self._max_size:
            raise QueueFullError("the queue is full; try later", retry_s=RETRY_S)
        found = self._threads.submit(self._begin, function, current_call(None), time.monotonic())
        self._size += size
        try:
            return await asyncio.wrap_future(found)
        except asyncio.CancelledError:
            found.add_done_callback(undo)
            raise
        finally:
            self._size -= size

    def _begin(self, function: Callable[[], T], call: Call | None, asked_s: float) -> T:
        wait_s = time.monotonic() - asked_s
        self._waited(self._name, wait_s)
        if call:
            call.stages.append(Stage("wait", asked_s, wait_s))
        self._busy.add(threading.get_ident())
        try:
            return function()
        finally:
            self._busy.discard(threading.get_ident())
