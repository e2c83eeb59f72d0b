"""Batches ready before they are asked for: those of the next step are made while this one trains."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from training.loop.distributed import World
from training.loop.types import Progress

if TYPE_CHECKING:
    from training.loop.types import Batch, LoopSettings, Phase

Place = tuple[int, int, int]
"""Phase, epoch, and index of a global batch."""


class Prefetcher:
    """This process's share of each global batch, in micro-batches, one step ahead."""

    def __init__(self, phases: Sequence[Phase], settings: LoopSettings, world: World) -> None:
        self._phases = phases
        self._settings = settings
        self._world = world
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="feed")
        self._ahead: tuple[Place, Future[tuple[Place, list[Batch]]]] | None = None

    def take(self, position: Progress) -> tuple[list[Batch], float]:
        """The batches of a position and the seconds spent waiting for them; those of the next one are begun.

        An index beyond the last batch moves `position` to the next epoch.
        """
        start = time.perf_counter()
        asked = (position.phase, position.epoch, position.index)
        if self._ahead is None or self._ahead[0] != asked:
            self._begin(asked)
        assert self._ahead is not None
        place, batches = self._ahead[1].result()
        _, position.epoch, position.index = place
        moved = [batch.to(self._world.device) for batch in batches]
        self._begin((position.phase, position.epoch, position.index + 1))
        return moved, time.perf_counter() - start

    def _begin(self, place: Place) -> None:
        self._ahead = (place, self._pool.submit(self._make, *place))

    def _make(self, phase: int, epoch: int, index: int) -> tuple[Place, list[Batch]]:
        data = self._phases[phase].data
        while index >= data.num_batches(epoch):  # an epoch may even have no whole batch
            epoch, index = epoch + 1, 0
        return (phase, epoch, index), [data.batch(epoch, index, part) for part in self._parts(phase)]

    def _parts(self, phase: int) -> Iterator[slice]:
        share = self._settings.global_batch_size // self._world.size
        size = self._phases[phase].micro_batch_size or self._settings.micro_batch_size
        first, last = self._world.rank * share, (self._world.rank + 1) * share
        for start in range(first, last, size):
            yield slice(start, min(start + size, last))

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
