"""Threads that parse, encode and serialise large requests, so that the event loop never stalls."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic as _now
from typing import Any, Generic, TypeVar

from serving.core.calls import Call, Stage
from serving.core.errors import RETRY_S, ExpiredError, NoThreadError, UnavailableError

SMALL_BYTES = 1024
"""Maximum bytes of a request that is handled on the event loop, in well under a millisecond and without thread
switches."""
SEQUENCE_BYTES = 64
"""Bytes of text that are as much work as one sequence, however short the sequence is."""
NUM_THREADS = 2
"""Number of threads for larger requests. With one thread, a single huge request would block all others."""
MAX_WAITING = 8192
"""Maximum number of waiting calls. Beyond it, a call of the caller with most of them is refused."""

T = TypeVar("T")
ItemT = TypeVar("ItemT", bound=Hashable)


@dataclass(slots=True)
class _CallerQueue(Generic[ItemT]):
    """Items of one caller, oldest first."""

    sizes: dict[ItemT, int] = field(default_factory=dict)
    size: int = 0


class RoundRobinQueue(Generic[ItemT]):
    """Queue that alternates between callers; the items of a caller keep their order."""

    def __init__(self) -> None:
        self._queues: dict[str, _CallerQueue[ItemT]] = {}
        """Queues by caller, in the order of their turns."""
        self.size = 0
        """Total size of all items."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def callers(self) -> list[str]:
        """Return the callers that have items, in the order of their turns."""
        return list(self._queues)

    def put(self, caller: str, item: ItemT, size: int = 1) -> None:
        """Add an item of a caller."""
        queue = self._queues.setdefault(caller, _CallerQueue())
        queue.sizes[item] = size
        queue.size += size
        self.size += size
        self._count += 1

    def take(self, is_allowed: Callable[[str], bool] = lambda caller: True) -> tuple[str, ItemT] | None:
        """Remove the oldest item of the next caller for which `is_allowed` is true; return None if there is none."""
        caller = next(filter(is_allowed, self._queues), None)
        if caller is None:
            return None
        item = next(iter(self._queues[caller].sizes))
        self.discard(caller, item)
        if queue := self._queues.pop(caller, None):
            self._queues[caller] = queue  # its next turn is after all others
        return caller, item

    def take_back(self) -> ItemT:
        """Remove the newest item of the caller whose items have the largest total size."""
        caller = max(self._queues, key=lambda name: self._queues[name].size)
        item = next(reversed(self._queues[caller].sizes))
        self.discard(caller, item)
        return item

    def discard(self, caller: str, item: ItemT) -> None:
        """Remove an item of a caller, if it is still there."""
        queue = self._queues.get(caller)
        if queue is None or item not in queue.sizes:
            return
        size = queue.sizes.pop(item)
        queue.size -= size
        self.size -= size
        self._count -= 1
        if not queue.sizes:
            del self._queues[caller]


@dataclass(frozen=True, slots=True, eq=False)
class _Work(Generic[T]):
    """Function to run, and the future of its result."""

    function: Callable[[], T]
    result: Future[T]
    call: Call | None
    queued_s: float


class CodecPool:
    """Thread pool that alternates between callers; the calls of one caller run in order."""

    def __init__(
        self, name: str, num_threads: int, observe_wait: Callable[[str, float], None], *, max_size: int | None = None
    ) -> None:
        """Start no thread yet.

        Args:
            name: name of the threads.
            observe_wait: called in a thread with `name` and the seconds that a function waited for the thread.
            max_size: maximum number of waiting bytes; beyond it, a call of the caller with most of them is refused.
                None: the number of calls is limited instead.
        """
        self._name, self._observe_wait, self._max_size = name, observe_wait, max_size
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._queue: RoundRobinQueue[_Work[Any]] = RoundRobinQueue()
        self._lock = threading.Lock()
        self._num_scheduled = 0
        """Calls of `_run_next` that the executor has not started yet."""
        self._busy: set[int] = set()
        """Ids of threads that run a function, even if nobody waits for its result any more."""

    @property
    def is_busy(self) -> bool:
        """True while a thread runs a function, which nothing can interrupt."""
        return bool(self._busy)

    def close(self) -> None:
        """Cancel what waits, and let the threads end after their current function. May be called again."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._num_scheduled = 0
            while taken := self._queue.take():
                taken[1].result.cancel()

    async def run(
        self,
        call: Call | None,
        size: int,
        function: Callable[[], T],
        undo: Callable[[Future[T]], None] = lambda result: None,
        small: int = SMALL_BYTES,
    ) -> T:
        """Run a function, on the event loop if the work is small, otherwise in a thread.

        The wait for the thread is a stage of the call. If the call is cancelled before its turn, nothing runs.

        Args:
            call: call that the work belongs to.
            size: size of the work, in bytes of a request.
            function: the work; takes no arguments.
            undo: called with the future of the result if the call is cancelled while the function runs.
            small: maximum size that runs immediately, on the event loop.

        Raises:
            NoThreadError: when too much work waits.
            ExpiredError: when the deadline of the call passed before its turn.
        """
        if size <= small:
            return function()
        caller, work = call.caller if call else "", _Work(function, Future[T](), call, _now())
        counted, limit = 1, MAX_WAITING
        if self._max_size is not None:
            counted, limit = max(size, self._max_size // MAX_WAITING), self._max_size
        with self._lock:
            self._queue.put(caller, work, counted)
            while self._queue.size > limit and len(self._queue) > 1:
                dropped = self._queue.take_back()
                dropped.result.set_exception(NoThreadError("the queue is full; try later", retry_s=RETRY_S))
            needs_thread = self._num_scheduled < len(self._queue)
            self._num_scheduled += needs_thread
        if needs_thread:
            self._threads.submit(self._run_next)
        try:
            return await asyncio.wrap_future(work.result)
        except asyncio.CancelledError:
            with self._lock:
                self._queue.discard(caller, work)
            work.result.add_done_callback(undo)
            raise

    def _run_next(self) -> None:
        with self._lock:
            self._num_scheduled -= 1
            taken = self._queue.take()
        if not taken or not taken[1].result.set_running_or_notify_cancel():
            return
        result = taken[1].result
        try:
            result.set_result(self._run(taken[1]))
        except BaseException as error:
            result.set_exception(error)
        finally:
            del result, taken  # an error refers to this frame: that would be a cycle

    def _run(self, work: _Work[T]) -> T:
        wait_s = _now() - work.queued_s
        self._observe_wait(self._name, wait_s)
        if call := work.call:
            call.stages.append(Stage("wait", work.queued_s, wait_s))
            if call.deadline_s is not None and _now() > call.deadline_s:
                raise ExpiredError("the deadline passed before the request was read")
        self._busy.add(threading.get_ident())
        try:
            return work.function()
        finally:
            self._busy.discard(threading.get_ident())


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
