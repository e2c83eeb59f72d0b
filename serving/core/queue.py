"""Queue of sequences, from which batches are formed. Has no threads and no clock."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from serving.core.fair_order import MUCH_SHORTER, FairOrder
from serving.core.job import BatchModel, Entry, Job

MAX_PADDING = 0.2
"""Maximum fraction of padding in a batch, unless all its padding takes less time than one more run would. A row alone
costs about a tenth more than in a full batch (measured), so a row that adds more padding than that is cheaper alone."""

Lane = tuple[bool, int]
"""Jobs of about the same urgency: whether they are bulk, and their size class."""
Buckets = dict[int, OrderedDict[Entry, None]]
"""Entries by length, oldest first."""


@dataclass
class _Batch:
    """Batch that is being formed."""

    first: Entry
    others: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._longest = self._num_tokens = len(self.first.sequence)

    def fill(self, lanes: Collection[Buckets], max_tokens: float) -> None:
        """Add the entries that fit, nearest in length to the first one first.

        Args:
            lanes: entries to choose from.
            max_tokens: maximum tokens of the batch, padding included.
        """
        for length in nearest(sorted({length for buckets in lanes for length in buckets}), len(self.first.sequence)):
            for entry in (entry for buckets in lanes for entry in buckets.get(length, ())):
                if entry is self.first:
                    continue
                if not self._fits(length, max_tokens):
                    break
                self.others.append(entry)
                self._longest, self._num_tokens = max(self._longest, length), self._num_tokens + length
            if (len(self.others) + 2) * self._longest > max_tokens:
                return

    def _fits(self, length: int, max_tokens: float) -> bool:
        padded = (len(self.others) + 2) * max(self._longest, length)
        max_padding = max(MAX_PADDING * padded, self.first.model.run_tokens)
        return padded <= max_tokens and padded - self._num_tokens - length <= max_padding


class Queue:
    """Waiting jobs in fair order, with their entries indexed by model and length."""

    def __init__(self) -> None:
        self.tokens: Counter[BatchModel] = Counter()
        """Model -> number of waiting tokens."""
        self.sequences: Counter[BatchModel] = Counter()
        """Model -> number of waiting sequences."""
        self.order = FairOrder()
        self._lanes: dict[BatchModel, dict[Lane, Buckets]] = defaultdict(dict)

    def __len__(self) -> int:
        return self.sequences.total()

    def add(self, job: Job) -> None:
        """Add all entries of a job."""
        if not job.entries:
            return
        self.order.add(job)
        buckets = self._lanes[job.model].setdefault(_lane(job), {})
        for entry in job.entries:
            entry.is_waiting = True
            buckets.setdefault(len(entry.sequence), OrderedDict())[entry] = None
        self.tokens[job.model] += job.num_tokens
        self.sequences[job.model] += len(job.entries)

    def remove(self, entries: Iterable[Entry]) -> int:
        """Remove entries of one model; return how many of them were waiting."""
        waiting = [entry for entry in entries if entry.is_waiting]
        if not waiting:
            return 0
        model = waiting[0].model
        lanes = self._lanes[model]
        for entry in waiting:
            entry.is_waiting = False
            lane, length = _lane(entry.job), len(entry.sequence)
            buckets = lanes[lane]
            del buckets[length][entry]
            if not buckets[length]:
                del buckets[length]
                if not buckets:
                    del lanes[lane]
            self.tokens[model] -= length
        self.sequences[model] -= len(waiting)
        self.order.remove(waiting)
        if not lanes:  # keep no reference to a model that is being unloaded
            del self._lanes[model], self.tokens[model], self.sequences[model]
        return len(waiting)

    def first(self) -> Entry | None:
        """Return the next entry; None if nothing waits."""
        next_job = self.order.next_job()
        return next_job.job.first_waiting() if next_job else None

    def pop_batch(self) -> list[Entry]:
        """Remove and return the next batch: the next entry, and the entries of its model that are nearest in length.

        Entries of less urgent jobs (bulk among interactive jobs, much larger ones) join it only as far as they cost no
        more than another run would: the next job would wait for them.

        Returns:
            Entries of at most `max_batch_tokens` padded tokens; a longer entry is a batch alone. Empty if nothing
            waits.
        """
        if not (next_job := self.order.next_job()):
            return []
        job, model = next_job.job, next_job.job.model
        batch, lanes = _Batch(job.first_waiting()), self._lanes[model]
        is_bulk, size = _lane(job)
        urgent = {
            lane: buckets
            for lane, buckets in sorted(lanes.items())
            if lane[0] <= is_bulk and lane[1] < size + MUCH_SHORTER
        }
        batch.fill(urgent.values(), model.max_batch_tokens)
        if len(urgent) < len(lanes):
            others = [buckets for lane, buckets in sorted(lanes.items()) if lane not in urgent]
            batch.fill(others, min(model.max_batch_tokens, model.run_tokens))
        entries = [batch.first, *batch.others]
        self.order.charge(next_job, entries)
        self.remove(entries)
        return entries


def _lane(job: Job) -> Lane:
    return job.origin.is_bulk, job.size_class


def nearest(values: Sequence[int], target: int) -> Iterator[int]:
    """Yield sorted values by distance from a target, nearest first; of two equally near the smaller first."""
    right = bisect_left(values, target)
    left = right - 1
    while left >= 0 or right < len(values):
        if right == len(values) or (left >= 0 and target - values[left] <= values[right] - target):
            yield values[left]
            left -= 1
        else:
            yield values[right]
            right += 1
