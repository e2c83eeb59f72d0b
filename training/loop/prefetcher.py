"""Prefetcher: makes the batches of the next step while the current one trains."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from training.loop.distributed import World
from training.loop.types import Batch, DataPosition, LoopSettings, Phase


class Prefetcher:
    """Micro-batches of this process, one step ahead."""

    def __init__(self, phases: Sequence[Phase], settings: LoopSettings, world: World) -> None:
        self._phases = phases
        self._settings = settings
        self._world = world
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prefetcher")
        self._ahead: tuple[DataPosition, Future[tuple[DataPosition, list[Batch]]]] | None = None

    def take(self, position: DataPosition) -> tuple[DataPosition, list[Batch], float]:
        """Return the batches of a position, and start to make those of the next one.

        Returns:
            The position of the batches, which is in a later epoch if the index was beyond the last batch; the
            micro-batches; and the seconds spent waiting.
        """
        start = time.perf_counter()
        if self._ahead is None or self._ahead[0] != position:
            self._begin(position)
        assert self._ahead is not None
        found, batches = self._ahead[1].result()
        moved = [batch.to(self._world.device) for batch in batches]
        self._begin(DataPosition(found.phase, found.epoch, found.index + 1))
        return found, moved, time.perf_counter() - start

    def _begin(self, position: DataPosition) -> None:
        self._ahead = (position, self._pool.submit(self._make, position))

    def _make(self, position: DataPosition) -> tuple[DataPosition, list[Batch]]:
        data, epoch, index = self._phases[position.phase].data, position.epoch, position.index
        while index >= data.num_batches(epoch):  # some epochs have no whole batch
            epoch, index = epoch + 1, 0
        batches = [data.batch(epoch, index, part) for part in self._micro_batches(position.phase)]
        return DataPosition(position.phase, epoch, index), batches

    def _micro_batches(self, phase: int) -> Iterator[slice]:
        """Yield the sequences of each of this process's micro-batches in the global batch."""
        num_sequences = self._settings.global_batch_size // self._world.size
        size = self._phases[phase].micro_batch_size or self._settings.micro_batch_size
        first, last = self._world.rank * num_sequences, (self._world.rank + 1) * num_sequences
        for start in range(first, last, size):
            yield slice(start, min(start + size, last))

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
