"""Queues that serve callers in turns, so that one who asks much does not keep the others waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Items in the order of their callers' turns; those of one caller in their own order."""

    def __init__(self) -> None:
        self._items: dict[str, deque[T]] = {}
        """By caller, in the order of their turns."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def callers(self) -> list[str]:
        """Those that have items, in the order of their turns."""
        return list(self._items)

    def put(self, caller: str, item: T) -> None:
        """Add an item behind those of its caller."""
        self._items.setdefault(caller, deque()).append(item)
        self._count += 1

    def take(self, may: Callable[[str], bool] = lambda caller: True) -> tuple[str, T] | None:
        """Remove the next item of the first caller that may; None where there is none."""
        caller = next(filter(may, self._items), None)
        if caller is None:
            return None
        items = self._items.pop(caller)
        item = items.popleft()
        if items:
            self._items[caller] = items  # behind all others
        self._count -= 1
        return caller, item

    def take_back(self) -> T:
        """Remove the newest item of the caller with most of them."""
        caller = max(self._items, key=lambda name: len(self._items[name]))
        items = self._items[caller]
        item = items.pop()
        if not items:
            del self._items[caller]
        self._count -= 1
        return item
