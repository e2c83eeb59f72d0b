"""Cache of replies, for clients that repeat exactly the same request. Knows no protocol."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from serving.core.models import Model

OVERHEAD_BYTES = 300
"""Memory of an entry besides its reply (measured)."""


@dataclass(frozen=True, slots=True)
class CachedReply:
    """Cached reply, with the model and the counts to record for each call that gets it."""

    model: Model
    """Model that computed it."""
    num_inputs: int
    num_tokens: int
    data: bytes

    @property
    def num_bytes(self) -> int:
        """Memory of the entry."""
        return OVERHEAD_BYTES + len(self.data)


class ReplyCache:
    """Least-recently-used cache of replies by request, bounded in bytes."""

    def __init__(self, capacity_bytes: int) -> None:
        self.num_bytes = 0
        """Memory of all entries."""
        self._capacity_bytes = capacity_bytes
        self._entries: OrderedDict[bytes, CachedReply] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> CachedReply | None:
        """Return the reply to a request; None if it is not cached."""
        if cached := self._entries.get(key):
            self._entries.move_to_end(key)
        return cached

    def put(self, key: bytes, cached: CachedReply) -> int:
        """Store a reply, unless it alone exceeds the capacity.

        Returns:
            Number of entries that were evicted.
        """
        if cached.num_bytes > self._capacity_bytes:
            return 0
        self._drop(key)
        self._entries[key] = cached
        self.num_bytes += cached.num_bytes
        count = len(self._entries)
        while self.num_bytes > self._capacity_bytes:
            self._drop(next(iter(self._entries)))
        return count - len(self._entries)

    def clear(self) -> None:
        """Remove all entries, since the models have changed."""
        self._entries.clear()
        self.num_bytes = 0

    def _drop(self, key: bytes) -> None:
        if cached := self._entries.pop(key, None):
            self.num_bytes -= cached.num_bytes
