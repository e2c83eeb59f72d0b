"""Queue that serves callers in turns, so that a caller with many items does not keep the others waiting."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


@dataclass(slots=True)
class _Line(Generic[T]):
    """The items of one caller, oldest first."""

    sizes: dict[T, int] = field(default_factory=dict)
    size: int = 0


class Turns(Generic[T]):
    """Items in the order of their callers' turns; those of one caller in their own order."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line[T]] = {}
        """By caller, in the order of their turns."""
        self.size = 0
        """Sum of the sizes of all items."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def callers(self) -> list[str]:
        """Return the callers that have items, in the order of their turns."""
        return list(self._lines)

    def put(self, caller: str, item: T, size: int = 1) -> None:
        """Add an item behind those of its caller."""
        line = self._lines.setdefault(caller, _Line())
        line.sizes[item] = size
        line.size += size
        self.size += size
        self._count += 1

    def take(self, may: Callable[[str], bool] = lambda caller: True) -> tuple[str, T] | None:
        """Remove the next item of the first caller that may; None where there is none."""
        caller = next(filter(may, self._lines), None)
        if caller is None:
            return None
        item = next(iter(self._lines[caller].sizes))
        self.discard(caller, item)
        if line := self._lines.pop(caller, None):
            self._lines[caller] = line  # behind all others
        return caller, item

    def take_back(self) -> T:
        """Remove the newest item of the caller whose items have the largest total size."""
        caller = max(self._lines, key=lambda name: self._lines[name].size)
        item = next(reversed(self._lines[caller].sizes))
        self.discard(caller, item)
        return item

    def discard(self, caller: str, item: T) -> None:
        """Remove an item of a caller, if it is still there."""
        line = self._lines.get(caller)
        if line is None or item not in line.sizes:
            return
        size = line.sizes.pop(item)
        line.size -= size
        self.size -= size
        self._count -= 1
        if not line.sizes:
            del self._lines[caller]
