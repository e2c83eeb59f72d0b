"""Round-robin queue: callers take turns, so that one with many items does not keep the others waiting."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


@dataclass(slots=True)
class _CallerQueue(Generic[T]):
    """Items of one caller, oldest first."""

    sizes: dict[T, int] = field(default_factory=dict)
    size: int = 0


class RoundRobinQueue(Generic[T]):
    """Queue that takes one item of each caller in turn; the items of a caller keep their order."""

    def __init__(self) -> None:
        self._queues: dict[str, _CallerQueue[T]] = {}
        """Queues by caller, in the order of their turns."""
        self.size = 0
        """Total size of all items."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def callers(self) -> list[str]:
        """Return the callers that have items, in the order of their turns."""
        return list(self._queues)

    def put(self, caller: str, item: T, size: int = 1) -> None:
        """Add an item of a caller."""
        queue = self._queues.setdefault(caller, _CallerQueue())
        queue.sizes[item] = size
        queue.size += size
        self.size += size
        self._count += 1

    def take(self, is_allowed: Callable[[str], bool] = lambda caller: True) -> tuple[str, T] | None:
        """Remove the oldest item of the next caller for which `is_allowed` is true; return None if there is none."""
        caller = next(filter(is_allowed, self._queues), None)
        if caller is None:
            return None
        item = next(iter(self._queues[caller].sizes))
        self.discard(caller, item)
        if queue := self._queues.pop(caller, None):
            self._queues[caller] = queue  # its next turn is after all others
        return caller, item

    def take_back(self) -> T:
        """Remove the newest item of the caller whose items have the largest total size."""
        caller = max(self._queues, key=lambda name: self._queues[name].size)
        item = next(reversed(self._queues[caller].sizes))
        self.discard(caller, item)
        return item

    def discard(self, caller: str, item: T) -> None:
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
