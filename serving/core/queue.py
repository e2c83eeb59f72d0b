"""Queue of sequences, from which batches are formed. Has no threads and no clock."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from serving.core.fair_order import FairOrder, WaitEstimate
from serving.core.job import BatchModel, Entry, Job, Origin

MAX_PADDING = 0.2
"""Maximum fraction of padding in a batch, unless all its padding takes less time than one more run would. A row alone
costs about a tenth more than in a full batch (measured), so a row that adds more padding than that is cheaper alone."""


class Queue:
    """Waiting jobs in fair order, with their entries indexed by model and length."""

    def __init__(self) -> None:
        self.tokens: Counter[BatchModel] = Counter()
        """Model -> number of waiting tokens."""
        self.sequences: Counter[BatchModel] = Counter()
        """Model -> number of waiting sequences."""
        self._order = FairOrder()
        self._by_length: dict[BatchModel, dict[int, OrderedDict[Entry, None]]] = defaultdict(dict)

    def __len__(self) -> int:
        return self.sequences.total()

    def add(self, job: Job) -> None:
        """Add all entries of a job."""
        if not job.entries:
            return
        self._order.add(job)
        buckets = self._by_length[job.model]
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
        buckets = self._by_length[model]
        for entry in waiting:
            entry.is_waiting = False
            length = len(entry.sequence)
            del buckets[length][entry]
            if not buckets[length]:
                del buckets[length]
            self.tokens[model] -= length
        self.sequences[model] -= len(waiting)
        self._order.remove(waiting)
        if not buckets:  # keep no reference to a model that is being unloaded
            del self._by_length[model], self.tokens[model], self.sequences[model]
        return len(waiting)

    def estimate_wait(self, origin: Origin, work_s: float, now_s: float) -> WaitEstimate:
        """Estimate the work that is computed before a new job is done; see `FairOrder.estimate_wait`."""
        return self._order.estimate_wait(origin, work_s, now_s)

    def refuse(self, origin: Origin, now_s: float) -> None:
        """Record that a caller was refused because the queue was full."""
        self._order.refuse(origin, now_s)

    def first(self) -> Entry | None:
        """Return the next entry; None if nothing waits."""
        next_job = self._order.next_job()
        return next_job.job.first_waiting() if next_job else None

    def pop_batch(self) -> list[Entry]:
        """Remove and return the next batch: the next entry, and the entries of its model that are nearest in length.

        Returns:
            Entries of at most `max_batch_tokens` padded tokens; a longer entry is a batch alone. Empty if nothing
            waits.
        """
        if not (next_job := self._order.next_job()):
            return []
        first = next_job.job.first_waiting()
        batch = [first, *self._neighbours(first)]
        self._order.charge(next_job, batch)
        self.remove(batch)
        return batch

    def _neighbours(self, first: Entry) -> Iterator[Entry]:
        """Yield the entries that fit into a batch with the first one, nearest in length first."""
        max_tokens, run_tokens = first.model.max_batch_tokens, first.model.run_tokens
        buckets = self._by_length[first.model]
        longest = tokens = len(first.sequence)
        rows = 1
        for length in nearest(sorted(buckets), longest):
            for entry in buckets[length]:
                if entry is first:
                    continue
                padded = (rows + 1) * max(longest, length)
                if padded > max_tokens or padded - tokens - length > max(MAX_PADDING * padded, run_tokens):
                    break
                longest, rows, tokens = max(longest, length), rows + 1, tokens + length
                yield entry
            if (rows + 1) * longest > max_tokens:
                return


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
