"""Replies that are sent again to who asks exactly the same. Knows neither gRPC nor models."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

OVERHEAD_BYTES = 300
"""What an entry takes beside its reply (measured)."""

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Known(Generic[M]):
    """A reply, and what is told of each call that gets it."""

    model: M
    """What computed it."""
    num_inputs: int
    num_tokens: int
    reply: bytes

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return OVERHEAD_BYTES + len(self.reply)


class ReplyCache(Generic[M]):
    """Replies by request, at most so many bytes of them: the one not asked for longest goes first."""

    def __init__(self, capacity_bytes: int) -> None:
        self.num_bytes = 0
        """Memory that its entries take."""
        self._capacity_bytes = capacity_bytes
        self._entries: OrderedDict[bytes, Known[M]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> Known[M] | None:
        """What is known of a request; None where nothing is."""
        if known := self._entries.get(key):
            self._entries.move_to_end(key)
        return known

    def put(self, key: bytes, known: Known[M]) -> int:
        """Keep a reply, unless it alone is too large.

        Returns:
            How many others had to go.
        """
        if known.num_bytes > self._capacity_bytes:
            return 0
        self._drop(key)
        self._entries[key] = known
        self.num_bytes += known.num_bytes
        count = len(self._entries)
        while self.num_bytes > self._capacity_bytes:
            self._drop(next(iter(self._entries)))
        return count - len(self._entries)

    def clear(self) -> None:
        """Forget all: a request may mean another model from now on."""
        self._entries.clear()
        self.num_bytes = 0

    def _drop(self, key: bytes) -> None:
        if known := self._entries.pop(key, None):
            self.num_bytes -= known.num_bytes


def request_key(path: str, raw: bytes) -> bytes:
    """What tells requests apart: the method and every byte of the message."""
    digest = hashlib.sha256(path.encode())
    digest.update(b"\0")
    digest.update(raw)
    return digest.digest()
