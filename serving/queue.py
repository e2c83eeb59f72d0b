"""What waits to be computed, and which of it makes the next batch. No threads, no clock."""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Sequence

from serving.jobs import Entry, Job, Model

MAX_PADDING = 0.2
"""Share of a batch that may be padding. A run of its own costs a row about a tenth more than a full batch does
(measured), so joining a batch by much padding is dearer."""
TICK_S = 0.05
"""How finely the queue knows when what waits is due."""


class Queue:
    """Jobs in the order in which they are due, and their entries by model and length."""

    def __init__(self) -> None:
        self.tokens: Counter[Model] = Counter()
        """Waiting tokens of each model."""
        self.sequences: Counter[Model] = Counter()
        """Waiting entries of each model."""
        self._num_entries = 0
        self._jobs: list[tuple[float, int, Job]] = []
        self._numbers = itertools.count()
        self._firsts: dict[Job, int] = {}
        """Of each job how many of its entries no longer wait, counted from the first."""
        self._by_length: dict[Model, dict[int, OrderedDict[Entry, None]]] = defaultdict(dict)
        self._due: dict[int, list[float]] = {}
        """Of what is due in each tick, the number of entries and the seconds of work."""

    def __len__(self) -> int:
        return self._num_entries

    def add(self, job: Job) -> None:
        """Let all entries of a job wait."""
        heapq.heappush(self._jobs, (job.due_s, next(self._numbers), job))
        self._firsts[job] = 0
        for entry in job.entries:
            entry.waits = True
            self._by_length[job.model].setdefault(len(entry.sequence), OrderedDict())[entry] = None
            self._count(entry, 1)

    def remove(self, entry: Entry) -> bool:
        """Take an entry out, wherever it is; False where it does not wait."""
        if not entry.waits:
            return False
        entry.waits = False
        length, buckets = len(entry.sequence), self._by_length[entry.model]
        del buckets[length][entry]
        if not buckets[length]:
            del buckets[length]
        self._count(entry, -1)
        if not buckets:  # nothing here may keep a model that is being unloaded
            del self._by_length[entry.model], self.tokens[entry.model], self.sequences[entry.model]
        return True

    def _count(self, entry: Entry, sign: int) -> None:
        self._num_entries += sign
        self.tokens[entry.model] += sign * len(entry.sequence)
        self.sequences[entry.model] += sign
        tick = _tick(entry.job.due_s)
        due = self._due.setdefault(tick, [0, 0.0])
        due[0] += sign
        due[1] += sign * entry.work_s
        if not due[0]:
            del self._due[tick]

    def work_before_s(self, due_s: float) -> float:
        """Seconds of a core that what is due earlier will take."""
        last = _tick(due_s)
        return sum(work_s for tick, (_, work_s) in self._due.items() if tick <= last)

    def first(self) -> Entry | None:
        """The entry that is due first."""
        while self._jobs:
            job = self._jobs[0][2]
            number = self._firsts[job]
            while number < len(job.entries) and not job.entries[number].waits:
                number += 1
            self._firsts[job] = number
            if number < len(job.entries):
                return job.entries[number]
            heapq.heappop(self._jobs)
            del self._firsts[job]
        return None

    def pop_batch(self) -> list[Entry]:
        """Take out the entry that is due first, and with it those of its model that are nearest in length.

        Returns:
            At most `max_batch_tokens` padded tokens; an entry longer than that makes a batch of its own. Empty where
            nothing waits.
        """
        first = self.first()
        batch = [first, *self._neighbours(first)] if first else []
        for entry in batch:
            self.remove(entry)
        return batch

    def _neighbours(self, first: Entry) -> Iterator[Entry]:
        """Those that fit into a batch with an entry."""
        cap, buckets = first.model.max_batch_tokens, self._by_length[first.model]
        longest = tokens = len(first.sequence)
        rows = 1
        for length in nearest(sorted(buckets), longest):
            for entry in buckets[length]:
                if entry is first:
                    continue
                padded = (rows + 1) * max(longest, length)
                if padded > cap or padded - tokens - length > MAX_PADDING * padded:
                    break
                longest, rows, tokens = max(longest, length), rows + 1, tokens + length
                yield entry
            if (rows + 1) * longest > cap:
                return


def _tick(due_s: float) -> int:
    return int(due_s / TICK_S)


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
