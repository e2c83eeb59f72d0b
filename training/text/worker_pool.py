"""Worker processes that do not outlive the one that started them."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, TypeVar

from tasks.machine import available_cpus
from training.parent import end_with

ResultT = TypeVar("ResultT")


def map_in_order(
    function: Callable[..., ResultT], arguments: Iterable[tuple[Any, ...]], *, num_workers: int
) -> Iterator[ResultT]:
    """Results of a function, in order, from processes of one thread each.

    Two sets of arguments a worker are read ahead, so that memory stays bounded. On an error nothing new is begun.

    Args:
        function: of a module that can be imported.
        num_workers: 0 for one a core.

    Raises:
        ChildProcessError: when a worker was killed; also what the function raises.
    """
    num_workers = num_workers or available_cpus()
    pool = ProcessPoolExecutor(num_workers, get_context("spawn"), _start_worker, initargs=(os.getpid(),))
    pending: deque[Future[ResultT]] = deque()
    try:
        for items in arguments:
            with _blocked_interrupts():
                pending.append(pool.submit(function, *items))
            if len(pending) > 2 * num_workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise ChildProcessError("a worker was killed; is there enough memory? give fewer --num-workers") from error
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _blocked_interrupts() -> Iterator[None]:
    """A process that is started in here never sees an interrupt: that is the parent's to handle, some moments later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(parent: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for each core already
    end_with(parent)
