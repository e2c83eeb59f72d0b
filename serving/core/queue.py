"""Queue of sequences, and the choice of the next batch. No threads, no clock."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from serving.core.fair_order import FairOrder, Outlook
from serving.core.job import Entry, Job, Model, Origin

MAX_PADDING = 0.2
"""Fraction of a batch that may be padding. A row costs about a tenth more in a run of its own than in a full batch
(measured), so a row that would add much padding is cheaper alone."""


class Queue:
    """Jobs in fair order, and their entries by model and length."""

    def __init__(self) -> None:
        self.tokens: Counter[Model] = Counter()
        """Waiting tokens of each model."""
        self.sequences: Counter[Model] = Counter()
        """Waiting entries of each model."""
        self._order = FairOrder()
        self._by_length: dict[Model, dict[int, OrderedDict[Entry, None]]] = defaultdict(dict)

    def __len__(self) -> int:
        return self.sequences.total()

    def add(self, job: Job) -> None:
        """Add all entries of a job."""
        if not job.entries:
            return
        self._order.add(job)
        buckets = self._by_length[job.model]
        for entry in job.entries:
            entry.waits = True
            buckets.setdefault(len(entry.sequence), OrderedDict())[entry] = None
        self.tokens[job.model] += job.num_tokens
        self.sequences[job.model] += len(job.entries)

    def remove(self, entries: Iterable[Entry]) -> int:
        """Take entries of one model out, wherever they are; returns how many of them waited."""
        waiting = [entry for entry in entries if entry.waits]
        if not waiting:
            return 0
        model = waiting[0].model
        buckets = self._by_length[model]
        for entry in waiting:
            entry.waits = False
            length = len(entry.sequence)
            del buckets[length][entry]
            if not buckets[length]:
                del buckets[length]
            self.tokens[model] -= length
        self.sequences[model] -= len(waiting)
        self._order.leave(waiting)
        if not buckets:  # nothing here may keep a model that is being unloaded
            del self._by_length[model], self.tokens[model], self.sequences[model]
        return len(waiting)

    def outlook(self, origin: Origin, work_s: float, now_s: float) -> Outlook:
        """Estimate what is computed before a new job of `work_s` core seconds is done."""
        return self._order.outlook(origin, work_s, now_s)

    def refuse(self, origin: Origin, now_s: float) -> None:
        """Note that a caller found no room."""
        self._order.refuse(origin, now_s)

    def first(self) -> Entry | None:
        """The entry that is next."""
        pick = self._order.pick()
        return pick.job.first_waiting() if pick else None

    def pop_batch(self) -> list[Entry]:
        """Take out the entry that is next, and with it those of its model that are nearest in length.

        Returns:
            At most `max_batch_tokens` padded tokens; an entry longer than that makes a batch of its own. Empty where
            nothing waits.
        """
        if not (pick := self._order.pick()):
            return []
        first = pick.job.first_waiting()
        batch = [first, *self._neighbours(first)]
        self._order.charge(pick, batch)
        self.remove(batch)
        return batch

    def _neighbours(self, first: Entry) -> Iterator[Entry]:
        """Yield the entries that fit into a batch with the first one, nearest in length first."""
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
