"""Threads for work that may never end, such as reading from storage that hangs. The process exits without them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from serving.core.errors import drop_tracebacks

T = TypeVar("T")

IDLE_S = 10.0
"""Seconds without any CPU time after which work counts as hanging. Reading, or waiting for a lock, uses some."""
MAX_WAIT_S = 120.0
"""Maximum seconds to wait for work, even if it uses CPU time."""


@dataclass(frozen=True, slots=True)
class WorkKey:
    """Identity of some work: at most one thread does the same work on the same path."""

    action: str
    """Name of the work, such as `scan`."""
    path: Path


class StorageWork(Generic[T]):
    """Function that runs in a thread of its own."""

    def __init__(self, future: asyncio.Future[T]) -> None:
        self.future = future
        """Result. An error that is no `Exception`, such as a panic of Rust code, becomes a RuntimeError."""
        self.hangs = False
        """True once a caller gave up waiting for it."""
        self._clock: int | None = None

    def run(self, function: Callable[[], T]) -> Callable[[], None]:
        """Call the function in this thread. Return a function that sets `future`, for the event loop to call."""
        if hasattr(time, "pthread_getcpuclockid"):  # macOS has none
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
        result, error = _call(function)
        return partial(self._settle, result, error)

    def _settle(self, result: T | None, error: Exception | None) -> None:
        if self.future.done():
            return
        if error:
            self.future.set_exception(error)
        else:
            self.future.set_result(cast(T, result))

    async def wait(self) -> bool:
        """Wait until the work has ended or seems to hang. Return whether it has ended."""
        started_s = active_s = now_s = time.monotonic()
        used_s = self._used_s()
        while not self.future.done() and now_s - active_s < IDLE_S and now_s - started_s < MAX_WAIT_S:
            await asyncio.wait((self.future,), timeout=min(1.0, IDLE_S / 2))
            before_s, used_s, now_s = used_s, self._used_s(), time.monotonic()
            active_s = active_s if used_s == before_s else now_s
        self.hangs = not self.future.done()
        return not self.hangs

    def _used_s(self) -> float:
        """Return the CPU time of the thread, or of the process if that of the thread is unknown."""
        with suppress(OSError):  # the thread has just ended
            return time.process_time() if self._clock is None else time.clock_gettime(self._clock)
        return 0.0


class StorageThreads:
    """Runs functions in threads, at most one at a time for each key. Lives in one event loop."""

    def __init__(self) -> None:
        self._running: dict[WorkKey, StorageWork[Any]] = {}

    def __bool__(self) -> bool:
        """Return whether some work has not ended, even if nobody waits for it any more."""
        return bool(self._running)

    def start(self, key: WorkKey, function: Callable[[], T]) -> StorageWork[T]:
        """Call a function in a new thread. Earlier work of the same key must have ended.

        Raises:
            RuntimeError: when the system has no more threads.
        """
        assert key not in self._running
        loop = asyncio.get_running_loop()
        work: StorageWork[T] = StorageWork(loop.create_future())
        # Read the error, if any: asyncio logs errors that nobody has read.
        work.future.add_done_callback(lambda future: future.cancelled() or future.exception())

        def run() -> None:
            settle = work.run(function)
            with suppress(RuntimeError):  # the loop was closed in the meantime
                loop.call_soon_threadsafe(self._end, key, settle)

        self._running[key] = work
        try:
            threading.Thread(target=run, name="storage", daemon=True).start()
        except BaseException:
            del self._running[key]
            raise
        return work

    def _end(self, key: WorkKey, settle: Callable[[], None]) -> None:
        del self._running[key]
        settle()

    async def call(self, key: WorkKey, function: Callable[[], T]) -> T:
        """Call a function in a thread and return its result.

        Args:
            key: action and path of the work; the error names the path.
            function: called, unless work with the same key is still running. Then its result is returned.

        Raises:
            TimeoutError: when the work seems to hang, or has hung since an earlier call.
        """
        work: StorageWork[T] = self._running.get(key) or self.start(key, function)
        if not work.hangs and await work.wait():
            return work.future.result()
        raise TimeoutError(f"`{key.path}` does not answer: its storage hangs")


def _call(function: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Call a function. Return its result, or an error that a future accepts.

    Expected errors lose their tracebacks, whose frames hold what was loaded. The frames of the callers hold the future:
    this cycle would stay in memory until the garbage collector runs.
    """
    try:
        return function(), None
    except (ValueError, OSError) as error:
        drop_tracebacks(error)
        return None, error
    except StopIteration as error:
        return None, RuntimeError(f"StopIteration: {error}")
    except Exception as error:
        return None, error
    except BaseException as error:
        return None, RuntimeError(f"{type(error).__name__}: {error}")
