"""What waits to be computed, and which of it makes the next batch. No threads, no clock."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Hashable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from serving.scheduler import Job

MAX_PADDING = 0.2
"""Share of a batch that may be padding. A run of its own costs a row about a tenth more than a full batch does
(measured), so joining a batch by much padding is dearer."""


class Model(Hashable, Protocol):
    """What batches are made for: computes the outputs of some sequences at once."""

    @property
    def max_batch_tokens(self) -> int:
        """Cap of a batch in padded tokens."""

    @property
    def num_threads(self) -> int:
        """Cores that a batch takes."""

    def compute(self, sequences: Sequence[Any]) -> Sequence[Any]:
        """One output for each sequence."""


@dataclass(eq=False, slots=True)
class Entry:
    """One sequence that waits."""

    job: Job
    group: int
    place: int
    """Position in the group."""
    sequence: Sized
    enqueued_s: float

    @property
    def model(self) -> Model:
        """The model that it waits for."""
        return self.job.model


class Queue:
    """Entries in order of age, and by model and length."""

    def __init__(self) -> None:
        self.tokens: Counter[Model] = Counter()
        """Waiting tokens of each model."""
        self.num_tokens = 0
        self._by_age: OrderedDict[Entry, None] = OrderedDict()
        self._by_length: dict[Model, dict[int, OrderedDict[Entry, None]]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._by_age)

    def add(self, entry: Entry) -> None:
        """Put an entry at the end."""
        length = len(entry.sequence)
        self._by_age[entry] = None
        self._by_length[entry.model].setdefault(length, OrderedDict())[entry] = None
        self.tokens[entry.model] += length
        self.num_tokens += length

    def remove(self, entry: Entry) -> bool:
        """Take an entry out, wherever it is; False where it no longer waits."""
        if entry not in self._by_age:
            return False
        length = len(entry.sequence)
        del self._by_age[entry]
        buckets = self._by_length[entry.model]
        del buckets[length][entry]
        if not buckets[length]:
            del buckets[length]
        self.tokens[entry.model] -= length
        self.num_tokens -= length
        return True

    def oldest(self) -> Entry | None:
        """The entry that has waited longest."""
        return next(iter(self._by_age), None)

    def pop_batch(self) -> list[Entry]:
        """Take out the oldest entry, and with it those of its model that are nearest in length.

        Returns:
            At most `max_batch_tokens` padded tokens; an entry longer than that makes a batch of its own.
        """
        batch = list(self._neighbours(next(iter(self._by_age))))
        for entry in batch:
            self.remove(entry)
        return batch

    def _neighbours(self, oldest: Entry) -> Iterator[Entry]:
        """The oldest entry first: since no entry is older, it heads the bucket of its length."""
        cap = oldest.model.max_batch_tokens
        buckets = self._by_length[oldest.model]
        longest, rows, tokens = len(oldest.sequence), 0, 0
        for length in nearest(sorted(buckets), longest):
            for entry in buckets[length]:
                padded = (rows + 1) * max(longest, length)
                if rows and (padded > cap or padded - tokens - length > MAX_PADDING * padded):
                    break
                longest, rows, tokens = max(longest, length), rows + 1, tokens + length
                yield entry
            if (rows + 1) * longest > cap:
                return


def nearest(values: Sequence[int], target: int) -> Iterator[int]:
    """Sorted values by distance from a target, nearest first, the smaller of two equally near."""
    right = bisect_left(values, target)
    left = right - 1
    while left >= 0 or right < len(values):
        if right == len(values) or (left >= 0 and target - values[left] <= values[right] - target):
            yield values[left]
            left -= 1
        else:
            yield values[right]
            right += 1
