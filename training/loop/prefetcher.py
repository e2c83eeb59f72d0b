"""Prefetcher: makes the batches of the next steps while the current one trains."""

from __future__ import annotations

import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context

import torch

from tasks.bundle.machine import available_cpus
from training.command_line.parent import blocked_interrupts, die_with_parent
from training.loop.distributed import World
from training.loop.types import Batch, DataPosition, LoopSettings, Phase

GPU_DATA_WORKERS = 8
"""Processes that make the batches of a GPU's pretraining; each makes about 1.2 million tokens/s."""

Made = tuple[DataPosition, list[Batch]]


class Prefetcher:
    """Micro-batches of this process: a thread makes them one step ahead, or processes make them several steps ahead.

    Batches are a pure function of their position, so both make the same ones.
    """

    def __init__(self, phases: Sequence[Phase], settings: LoopSettings, world: World) -> None:
        self._world = world
        self._num_workers = num_data_workers(settings, world)
        maker = BatchMaker(phases, settings, world)
        self._pool: Executor = ThreadPoolExecutor(1, "prefetcher")
        self._make: Callable[[DataPosition], Made | bytes] = maker.make
        if self._num_workers:
            # Forked, because the data are large and cannot be pickled; none of the processes uses the device
            arguments = (self._num_workers, get_context("fork"), _start_worker, (os.getpid(), maker))
            self._pool, self._make = ProcessPoolExecutor(*arguments), _make_in_worker
        self._ahead: deque[tuple[DataPosition, Future[Made | bytes]]] = deque()

    def take(self, position: DataPosition) -> tuple[DataPosition, list[Batch], float]:
        """Return the batches of a position, and start to make those of the next ones.

        Returns:
            The position of the batches, which is in a later epoch if the index was beyond the last batch; the
            micro-batches; and the seconds spent waiting for them.

        Raises:
            ChildProcessError: if a process that makes batches was killed.
        """
        try:
            start = time.perf_counter()
            self._fill(position)
            made = self._ahead.popleft()[1].result()
            found, batches = pickle.loads(made) if isinstance(made, bytes) else made
            wait_s = time.perf_counter() - start
            moved = [batch.to(self._world.device) for batch in batches]
            self._fill(_next(found))
            return found, moved, wait_s
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "a process that makes batches was killed; is there enough memory? lower --data-workers"
            ) from error

    def _fill(self, position: DataPosition) -> None:
        """Make batches from this position on, and forget those of another one, as after the end of an epoch or phase.

        Those are made nevertheless: a pool of Python 3.11 with cancelled work does not end if a process is killed.
        """
        if self._ahead and self._ahead[0][0] != position:
            self._ahead.clear()
        following = _next(self._ahead[-1][0]) if self._ahead else position
        while len(self._ahead) < max(1, 2 * self._num_workers):
            with blocked_interrupts():  # the first call starts the processes
                self._ahead.append((following, self._pool.submit(self._make, following)))
            following = _next(following)

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def num_data_workers(settings: LoopSettings, world: World) -> int:
    """Return the number of processes that make batches; 0 for a thread."""
    if settings.data_workers is not None:
        return settings.data_workers
    is_slow = settings.stage == "pretraining" and world.device.type == "cuda"
    return max(0, min(GPU_DATA_WORKERS, available_cpus() // world.size - 1)) if is_slow else 0


def _next(position: DataPosition) -> DataPosition:
    return replace(position, index=position.index + 1)


@dataclass(frozen=True)
class BatchMaker:
    """Makes the micro-batches of one process."""

    phases: Sequence[Phase]
    settings: LoopSettings
    world: World

    def make(self, position: DataPosition) -> Made:
        """Return the micro-batches of a position, and the position itself: the next epoch if this one is over."""
        data, epoch, index = self.phases[position.phase].data, position.epoch, position.index
        while index >= data.num_batches(epoch):  # some epochs have no whole batch
            epoch, index = epoch + 1, 0
        num_sequences = self.settings.global_batch_size // self.world.size
        size = self.phases[position.phase].micro_batch_size or self.settings.micro_batch_size or num_sequences
        first, last = self.world.rank * num_sequences, (self.world.rank + 1) * num_sequences
        parts = [slice(start, min(start + size, last)) for start in range(first, last, size)]
        return DataPosition(position.phase, epoch, index), [data.batch(epoch, index, part) for part in parts]


def _start_worker(parent: int, maker: BatchMaker) -> None:
    global _maker
    die_with_parent(parent)
    torch.set_num_threads(1)  # the threads of the parent's pool do not exist here
    _maker = maker


_maker: BatchMaker
"""Maker of this worker process."""


def _make_in_worker(position: DataPosition) -> bytes:
    """Return pickled batches: a queue of PyTorch would pass each tensor as a separate file."""
    return pickle.dumps(_maker.make(position), pickle.HIGHEST_PROTOCOL)
