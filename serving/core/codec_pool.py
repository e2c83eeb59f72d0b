"""Work that would stall the event loop is done beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic as _now
from typing import Any, Generic, TypeVar

from serving.core.calls import Call, Stage, current_call
from serving.core.errors import NoThreadError
from serving.core.round_robin import Turns
from serving.core.scheduler import ExpiredError

SMALL_BYTES = 1024
"""What is smaller is handled on the event loop: in well under a millisecond, and without the switch of threads."""
SEQUENCE_BYTES = 64
"""A sequence is as much work as so many bytes of text, however short it is."""
NUM_THREADS = 2
"""For larger ones, so that one of them does not keep all the others waiting."""
MAX_WAITING = 8192
"""Calls; where more wait, the caller with most of them loses one: refusing is quicker than waiting."""
RETRY_S = 1.0
"""What is refused since too much waits may be tried again after so long."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _Work(Generic[T]):
    """A function that is to be called, and who waits for what it returns."""

    function: Callable[[], T]
    found: Future[T]
    call: Call | None
    asked_s: float


class Offload:
    """Calls functions in threads, where they have much to do; callers have their turns, each in its own order."""

    def __init__(
        self, name: str, num_threads: int, waited: Callable[[str, float], None], *, max_size: int | None = None
    ) -> None:
        """Make it.

        Args:
            name: of the threads.
            waited: is told of each wait for one of them: that name, and seconds. Called in that thread.
            max_size: most bytes that may wait; beyond it, the caller with most loses a call. None: calls are counted.
        """
        self._name, self._waited, self._max_size = name, waited, max_size
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._turns: Turns[_Work[Any]] = Turns()
        self._lock = threading.Lock()
        self._num_due = 0
        """Turns that threads were asked to take, and have not taken yet."""
        self._busy: set[int] = set()
        """Threads that work, even if nobody waits for it any more."""

    @property
    def is_busy(self) -> bool:
        """Whether a thread works: nothing can end that before it is done."""
        return bool(self._busy)

    def close(self) -> None:
        """Begin nothing more, and end the threads, those that work when they are done; again is fine."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._num_due = 0
            while found := self._turns.take():
                found[1].found.cancel()

    async def __call__(
        self,
        size: int,
        function: Callable[[], T],
        undo: Callable[[Future[T]], None] = lambda found: None,
        small: int = SMALL_BYTES,
    ) -> T:
        """Call a function, in a thread where what it works on is not small, so that the event loop never stalls. The
        wait for that thread is a stage of the call. Calls that nobody waits for any more are left out.

        Args:
            size: bytes of a request, or of a request that is as much work.
            undo: is given what the function does after all when the call was cancelled meanwhile.
            small: up to how many bytes it is called at once.

        Raises:
            NoThreadError: when too much waits.
            ExpiredError: when the call's deadline passed before its turn came.
        """
        if size <= small:
            return function()
        call = current_call(None)
        caller, work = call.caller if call else "", _Work(function, Future[T](), call, _now())
        self._put(caller, work, size)
        try:
            return await asyncio.wrap_future(work.found)
        except asyncio.CancelledError:
            with self._lock:
                self._turns.discard(caller, work)
            work.found.add_done_callback(undo)
            raise

    def _put(self, caller: str, work: _Work[Any], size: int) -> None:
        with self._lock:
            self._turns.put(caller, work, 1 if self._max_size is None else max(size, self._max_size // MAX_WAITING))
            while (
                self._turns.size > (MAX_WAITING if self._max_size is None else self._max_size) and len(self._turns) > 1
            ):
                late = self._turns.take_back()
                late.found.set_exception(NoThreadError("the queue is full; try later", retry_s=RETRY_S))
            is_due = self._num_due < len(self._turns)
            self._num_due += is_due
        if is_due:
            self._threads.submit(self._run_next)

    def _run_next(self) -> None:
        with self._lock:
            self._num_due -= 1
            taken = self._turns.take()
        if not taken or not taken[1].found.set_running_or_notify_cancel():
            return
        found = taken[1].found
        try:
            found.set_result(self._run(taken[1]))
        except BaseException as error:
            found.set_exception(error)
        finally:
            del found, taken  # an error refers to this frame: in a circle, where nobody waits for it

    def _run(self, work: _Work[T]) -> T:
        wait_s = _now() - work.asked_s
        self._waited(self._name, wait_s)
        if call := work.call:
            call.stages.append(Stage("wait", work.asked_s, wait_s))
            if call.deadline_s is not None and _now() > call.deadline_s:
                raise ExpiredError("the deadline passed before the request had its turn to be read")
        self._busy.add(threading.get_ident())
        try:
            return work.function()
        finally:
            self._busy.discard(threading.get_ident())
