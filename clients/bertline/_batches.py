"""Lists of any length, in pieces that are neither too many nor too large."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def batches(items: Iterable[T], num_bytes: Callable[[T], int], *, max_items: int, max_bytes: int) -> Iterator[list[T]]:
    """Cut items into consecutive batches.

    Args:
        num_bytes: size of one item.
        max_bytes: most bytes of a batch; an item that is larger makes a batch of its own.
    """
    batch: list[T] = []
    batch_bytes = 0
    for item in items:
        item_bytes = num_bytes(item)
        if batch and (len(batch) == max_items or batch_bytes + item_bytes > max_bytes):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(item)
        batch_bytes += item_bytes
    if batch:
        yield batch
