"""A pool of worker processes that end with their parent."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, TypeVar

from tasks.bundle.machine import available_cpus
from training.command_line.parent import blocked_interrupts, die_with_parent

ResultT = TypeVar("ResultT")


def map_in_order(
    function: Callable[..., ResultT], arguments: Iterable[tuple[Any, ...]], *, num_workers: int
) -> Iterator[ResultT]:
    """Yield the results of a function, in order, from processes with one thread each.

    At most two sets of arguments for each worker are read ahead, to bound memory. After an error no call starts.

    Args:
        function: function of a module that workers can import.
        num_workers: number of processes; 0 for one for each core, 1 for this process alone.

    Raises:
        ChildProcessError: if a worker was killed.
        Exception: any error of the function.
    """
    num_workers = num_workers or available_cpus()
    if num_workers == 1:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        yield from (function(*items) for items in arguments)
        return
    pool = ProcessPoolExecutor(num_workers, get_context("spawn"), _start_worker, initargs=(os.getpid(),))
    pending: deque[Future[ResultT]] = deque()
    try:
        for items in arguments:
            with blocked_interrupts():
                pending.append(pool.submit(function, *items))
            if len(pending) > 2 * num_workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise ChildProcessError("a worker was killed; is there enough memory? lower --num-workers") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker(parent: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is already a process for each core
    die_with_parent(parent)
