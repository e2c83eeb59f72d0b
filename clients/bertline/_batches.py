"""Split lists into batches by number and size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def batches(items: Iterable[T], num_bytes: Callable[[T], int], *, max_items: int, max_bytes: int) -> Iterator[list[T]]:
    """Split items into consecutive batches.

    Args:
        items: items to split.
        num_bytes: returns the size of an item.
        max_items: maximum number of items in a batch.
        max_bytes: maximum size of a batch. A larger item is a separate batch.
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
