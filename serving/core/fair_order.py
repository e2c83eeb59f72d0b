"""Order in which waiting jobs are computed. Has no threads, no clock and no models.

Three rules divide the cores' time, so that no job and no caller can block another:

1. Fair queueing: the caller with the least core time so far goes next (start-time fair queueing: Goyal, Vin and Cheng,
   SIGCOMM 1996). Its shortest job goes first; among jobs of similar size, and among all that fit into one batch, the
   one with the earliest deadline.
2. Short jobs first: a much shorter job goes before the job chosen by rule 1, for up to SHORT_RATIO of the time.
3. No starvation: the oldest job goes first for OLD_RATIO of the time.

Bulk jobs wait while any interactive job waits, except under rule 3.

Example of rule 1. Callers A and B send jobs of 0.4 core seconds. A has had 3.0 core seconds so far, B 2.0. B goes next
three times (2.0 -> 2.4 -> 2.8 -> 3.2), then A once (3.0 -> 3.4), then B. A new caller starts at the least of these
times, not at 0. Otherwise it would go first for seconds.

Example of rule 2. It is A's turn, with a job of 1.6 core seconds. B sends jobs of 0.1, less than an eighth of that.
They go first as long as the budget for short jobs lasts, SHORT_BURST_S = 0.25 after a quiet time. Each one costs 0.1
and earns SHORT_RATIO x 0.1 = 0.05. So three go first (0.25 -> 0.20 -> 0.15 -> 0.10); the rest of the budget is reserved
for jobs of at most a 64th. Then A's job runs and earns 0.8, which fills the budget to 0.25 again.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from serving.core.job import Entry, Job, Origin, size_class

SHORT_RATIO = 0.5
"""Maximum fraction of the cores' time for short jobs that go before their turn (rule 2)."""
MUCH_SHORTER = 3
"""Difference in size class (powers of two) that makes a job much shorter: at most an eighth of the work."""
SHORT_BURST_S = 0.25
"""Core seconds of short jobs that may go before their turn in one burst, after a time without any. The last half is
reserved for jobs at least 2 x MUCH_SHORTER size classes below the largest, the last quarter for 3 x MUCH_SHORTER, and
so on. Otherwise jobs of medium size would use up the budget, and the shortest ones would wait."""
OLD_RATIO = 0.125
"""Fraction of the cores' time for the oldest job (rule 3)."""
OLD_BURST_S = 0.05
"""Core seconds that rule 3 may save up."""

NUM_SAMPLED = 256
"""Maximum number of callers that a wait estimate reads; with more callers it reads every second, third, ... one."""
LARGE = 1 / 64
"""A caller with more than this fraction of the waiting work is always part of the wait estimate."""
REFUSAL_S = 2.0
"""Seconds for which a refused caller is expected to try again."""

T = TypeVar("T")
JobKey = tuple[int, float, int]
"""Size class, deadline and number of a job. Jobs with the smallest key go first: shorter, then more urgent, then older
ones. Under rule 1, all jobs that fit into one batch are equally short: if the shortest always went first, it would
rarely find others of its length to share a batch with."""


class Rule(Enum):
    """Rule by which a job is next."""

    TURN = 1
    SHORT = 2
    OLD = 3


@dataclass(frozen=True, slots=True)
class NextJob:
    """Next job and the rule that chose it."""

    job: Job
    rule: Rule


@dataclass(frozen=True, slots=True)
class WaitEstimate:
    """Estimate of the work ahead of a new job."""

    work_ahead_s: float
    """Core seconds of other jobs that are computed before the new job is done."""
    others_served_less: bool
    """True if a caller with less core time waits or was refused within the last REFUSAL_S seconds."""


_NO_WAIT = WaitEstimate(0.0, False)


@dataclass(slots=True)
class WaitingWork:
    """Number and core seconds of waiting sequences."""

    num_entries: int = 0
    work_s: float = 0.0

    def add(self, num_entries: int, work_s: float) -> None:
        """Add sequences; negative numbers remove them."""
        self.num_entries += num_entries
        self.work_s = self.work_s + work_s if self.num_entries else 0.0  # drops rounding errors


class TimeBudget:
    """Core seconds that a rule may spend: a fraction of all computed core seconds, saved up to a maximum."""

    def __init__(self, ratio: float, max_s: float, *, left_s: float) -> None:
        self._ratio, self._max_s = ratio, max_s
        self.left_s = left_s
        """Core seconds left; negative if the last batch took more."""

    @property
    def has_time(self) -> bool:
        """True if the rule may take another batch."""
        return self.left_s > 0

    def update(self, work_s: float, *, is_spent: bool) -> None:
        """Earn a fraction of a computed batch, and pay for it if the rule took it (`is_spent`)."""
        self.left_s = min(self._max_s, self.left_s + (self._ratio - is_spent) * work_s)


class _KeyedHeap(Generic[T]):
    """Items by key, smallest key first. A heap of keys: keys of discarded items stay until they are popped or many."""

    def __init__(self) -> None:
        self._items: dict[JobKey, T] = {}
        self._keys: list[JobKey] = []

    def add(self, key: JobKey, item: T) -> None:
        """Add an item under a new key."""
        self._items[key] = item
        heapq.heappush(self._keys, key)

    def discard(self, key: JobKey) -> None:
        """Remove the item of a key."""
        del self._items[key]
        if len(self._keys) > 64 + 2 * len(self._items):
            self._keys = sorted(self._items)

    def first(self) -> T | None:
        """Return the item with the smallest key; None if empty."""
        while self._keys and self._keys[0] not in self._items:
            heapq.heappop(self._keys)
        return self._items[self._keys[0]] if self._keys else None


@dataclass(eq=False)
class _Caller:
    """Waiting jobs of one caller, and the core time that it has received."""

    name: Hashable
    served_s: float
    """Core seconds received, on the virtual clock of its class."""
    by_turn: _KeyedHeap[Job] = field(default_factory=_KeyedHeap)
    """Jobs in their order under rule 1."""
    by_size: _KeyedHeap[Job] = field(default_factory=_KeyedHeap)
    """The same jobs, shortest first, for rule 2."""
    waiting: WaitingWork = field(default_factory=WaitingWork)


class _FairQueue:
    """Callers of one class (interactive or bulk); the one with the least core time goes next."""

    def __init__(self) -> None:
        self.callers: dict[Hashable, _Caller] = {}
        """Callers with waiting jobs, and callers that are ahead of the virtual clock and may come back."""
        self.waiting = WaitingWork()
        self.now_s = 0.0
        """Virtual clock: core seconds of the least served waiting caller. A new caller starts here."""
        self._refusals: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()
        """Refused callers in the order of their first refusal since they were last admitted -> virtual time of that
        first refusal, and clock time of the last one."""
        self._last_refused: OrderedDict[Hashable, None] = OrderedDict()
        """The same callers, in the order of their last refusal."""
        self._large: set[_Caller] = set()
        """Callers that may have more than LARGE of the waiting work."""
        self._num_estimates = 0
        self._heap: list[tuple[float, int, _Caller]] = []
        self._numbers = itertools.count()

    def add(self, job: Job, key: JobKey) -> None:
        caller = self.callers.get(job.origin.caller)
        if caller is None:
            caller = self.callers[job.origin.caller] = _Caller(job.origin.caller, self.now_s)
            self._push(caller)
        elif not caller.waiting.num_entries and caller.served_s < self.now_s:
            caller.served_s = self.now_s
            self._push(caller)
        caller.by_turn.add(_turn_key(job, key), job)
        caller.by_size.add(key, job)
        self._forget_refusal(caller.name)

    def remove(self, job: Job, key: JobKey) -> None:
        caller = self.callers[job.origin.caller]
        caller.by_turn.discard(_turn_key(job, key))
        caller.by_size.discard(key)

    def count(self, name: Hashable, num_entries: int, work_s: float) -> None:
        caller = self.callers[name]
        caller.waiting.add(num_entries, work_s)
        self.waiting.add(num_entries, work_s)
        if not caller.waiting.num_entries:
            self._large.discard(caller)
        elif caller.waiting.work_s > LARGE * self.waiting.work_s:
            self._large.add(caller)

    def charge(self, name: Hashable, work_s: float) -> None:
        caller = self.callers[name]
        caller.served_s += work_s
        self._push(caller)

    def _push(self, caller: _Caller) -> None:
        """Push a caller; among equals the newest goes first, so that a new caller does not wait for all the others."""
        heapq.heappush(self._heap, (caller.served_s, -next(self._numbers), caller))

    def next(self) -> Job | None:
        """Return the next job by rule 1; None if no job waits."""
        while self._heap:
            served_s, _, caller = self._heap[0]
            if served_s == caller.served_s and caller.waiting.num_entries:
                self.now_s = max(self.now_s, served_s)
                return caller.by_turn.first()
            heapq.heappop(self._heap)
            if served_s == caller.served_s and self.callers.get(caller.name) is caller:
                del self.callers[caller.name]  # the virtual clock has caught up with it: a new one would be equal
        return None

    def refuse(self, caller: Hashable, now_s: float) -> None:
        self._refusals[caller] = self._refusals.get(caller, (self.now_s, now_s))[0], now_s
        self._last_refused[caller] = None
        self._last_refused.move_to_end(caller)
        self._forget_old_refusals(now_s)

    def _forget_old_refusals(self, now_s: float) -> None:
        """Forget callers that were not refused again within REFUSAL_S."""
        while self._last_refused and self._refusals[first := next(iter(self._last_refused))][1] < now_s - REFUSAL_S:
            self._forget_refusal(first)

    def _forget_refusal(self, caller: Hashable) -> None:
        if self._refusals.pop(caller, None):
            del self._last_refused[caller]

    def estimate_wait(self, caller: Hashable, work_s: float, now_s: float) -> WaitEstimate:
        """Estimate the work of this class that is computed before a new job of a caller is done."""
        self._forget_old_refusals(now_s)
        first_refused_s = next(iter(self._refusals.values()))[0] if self._refusals else math.inf
        own = self.callers.get(caller) or _Caller(caller, self.now_s)
        until_s = max(own.served_s, self.now_s) + own.waiting.work_s + work_s
        work_ahead_s = own.waiting.work_s
        others_served_less = self._refusals.get(caller, (own.served_s, 0.0))[0] > first_refused_s
        for other, weight in self._others(own):
            work_ahead_s += weight * min(other.waiting.work_s, max(0.0, until_s - other.served_s))
            others_served_less = others_served_less or other.served_s < own.served_s
        return WaitEstimate(min(work_ahead_s, self.waiting.work_s), others_served_less)

    def _others(self, own: _Caller) -> Iterator[tuple[_Caller, int]]:
        """Yield the other callers with waiting jobs, and the number of callers that each represents.

        With more than NUM_SAMPLED callers, yield those with much work and a sample of the others, a new one each time.
        """
        step = 1 + len(self.callers) // NUM_SAMPLED
        if step == 1:
            yield from ((other, 1) for other in self.callers.values() if other.waiting.num_entries and other is not own)
            return
        self._large = {item for item in self._large if item.waiting.work_s > LARGE * self.waiting.work_s}
        yield from ((other, 1) for other in self._large if other is not own)
        self._num_estimates += 1
        for other in itertools.islice(self.callers.values(), self._num_estimates % step, None, step):
            if other.waiting.num_entries and other is not own and other not in self._large:
                yield other, step


@dataclass(slots=True)
class _SizeClass:
    """Interactive jobs of one size class."""

    waiting: WaitingWork = field(default_factory=WaitingWork)
    callers: OrderedDict[Hashable, int] = field(default_factory=OrderedDict)
    """Caller -> number of its waiting jobs. The caller that rule 2 served last comes last."""


class FairOrder:
    """Waiting jobs in the order of the three rules."""

    def __init__(self) -> None:
        self._classes = (_FairQueue(), _FairQueue())
        """Interactive jobs, bulk jobs."""
        self._sizes: defaultdict[int, _SizeClass] = defaultdict(_SizeClass)
        self._keys: OrderedDict[Job, JobKey] = OrderedDict()
        """Keys of all waiting jobs, oldest first."""
        self._short = TimeBudget(SHORT_RATIO, SHORT_BURST_S, left_s=SHORT_BURST_S)
        self._old = TimeBudget(OLD_RATIO, OLD_BURST_S, left_s=0.0)
        self._numbers = itertools.count()
        self._next: NextJob | None = None
        """Cached result of `next_job`; None after a change."""

    def add(self, job: Job) -> None:
        """Add a job with all its entries."""
        self._next = None
        deadline_s = math.inf if job.deadline_s is None else job.deadline_s
        key = self._keys[job] = (job.size_class, deadline_s, next(self._numbers))
        self._classes[job.origin.is_bulk].add(job, key)
        if not job.origin.is_bulk:
            callers = self._sizes[key[0]].callers
            callers[job.origin.caller] = callers.get(job.origin.caller, 0) + 1
        job.num_waiting = len(job.entries)
        self._count(job, job.num_waiting, job.work_s)

    def remove(self, entries: Sequence[Entry]) -> None:
        """Remove entries, and jobs without waiting entries."""
        self._next = None
        by_job: defaultdict[Job, list[float]] = defaultdict(list)
        for entry in entries:
            by_job[entry.job].append(entry.work_s)
        for job, work_s in by_job.items():
            job.num_waiting -= len(work_s)
            self._count(job, -len(work_s), -sum(work_s))
            if not job.num_waiting:
                self._forget(job)

    def _forget(self, job: Job) -> None:
        key, caller = self._keys.pop(job), job.origin.caller
        self._classes[job.origin.is_bulk].remove(job, key)
        if not job.origin.is_bulk:
            callers = self._sizes[key[0]].callers
            callers[caller] -= 1
            if not callers[caller]:
                del callers[caller]
            if not callers:
                del self._sizes[key[0]]

    def _count(self, job: Job, num_entries: int, work_s: float) -> None:
        origin = job.origin
        self._classes[origin.is_bulk].count(origin.caller, num_entries, work_s)
        if not origin.is_bulk:
            self._sizes[self._keys[job][0]].waiting.add(num_entries, work_s)

    def next_job(self) -> NextJob | None:
        """Return the next job and its rule; None if nothing waits."""
        if not self._next:
            self._next = self._choose_next()
        return self._next

    def _choose_next(self) -> NextJob | None:
        interactive, bulk = self._classes
        first_bulk = bulk.next()  # always called: it also removes callers without jobs
        in_turn = interactive.next() or first_bulk
        if in_turn is None:
            return None
        if len(self._keys) == 1:
            return NextJob(in_turn, Rule.TURN)
        oldest = next(iter(self._keys))
        first = (
            NextJob(oldest, Rule.OLD) if self._old.has_time and oldest is not in_turn else NextJob(in_turn, Rule.TURN)
        )
        if not self._short.has_time:
            return first
        shortest = self._shortest() or in_turn
        jobs = (shortest, in_turn) if self._is_much_shorter(shortest, in_turn) else (in_turn, shortest)
        largest = max((self._keys[first.job][0], *self._sizes))
        for job in jobs:
            reserved_s = SHORT_BURST_S * 0.5 ** ((largest - self._keys[job][0]) // MUCH_SHORTER)
            if self._is_much_shorter(job, first.job) and self._short.left_s > reserved_s:
                return NextJob(job, Rule.SHORT)
        return first

    def _is_much_shorter(self, job: Job, other: Job) -> bool:
        return self._keys[job][0] <= self._keys[other][0] - MUCH_SHORTER

    def _shortest(self) -> Job | None:
        """Return a job of the smallest size class; its callers take turns."""
        if not self._sizes:
            return None
        caller = next(iter(self._sizes[min(self._sizes)].callers))
        return self._classes[False].callers[caller].by_size.first()

    def charge(self, next_job: NextJob, batch: Sequence[Entry]) -> None:
        """Charge callers and rules for a batch. To be called before its entries are removed."""
        self._next = None
        work_s = sum(entry.work_s for entry in batch)
        self._short.update(work_s, is_spent=next_job.rule is Rule.SHORT)
        self._old.update(work_s, is_spent=next_job.rule is Rule.OLD)
        if next_job.rule is Rule.SHORT and not next_job.job.origin.is_bulk:
            self._sizes[self._keys[next_job.job][0]].callers.move_to_end(next_job.job.origin.caller)
        charges: defaultdict[Origin, float] = defaultdict(float)
        for entry in batch:
            charges[entry.job.origin] += entry.work_s
        for origin, seconds in charges.items():
            self._classes[origin.is_bulk].charge(origin.caller, seconds)

    def refuse(self, origin: Origin, now_s: float) -> None:
        """Record that a caller was refused because the queue was full."""
        self._classes[origin.is_bulk].refuse(origin.caller, now_s)

    def estimate_wait(self, origin: Origin, work_s: float, now_s: float) -> WaitEstimate:
        """Estimate the work that is computed before a new job is done.

        Args:
            origin: caller and class of the job.
            work_s: core seconds of the job.
            now_s: current time in seconds, on any clock.
        """
        if not self._keys:
            return _NO_WAIT
        interactive, bulk = self._classes
        if origin.is_bulk:
            estimate = bulk.estimate_wait(origin.caller, work_s, now_s)
            last_s = interactive.waiting.work_s + estimate.work_ahead_s
            oldest_s = (estimate.work_ahead_s + work_s) / OLD_RATIO - work_s
            return WaitEstimate(min(last_s, oldest_s), estimate.others_served_less)
        estimate, largest = interactive.estimate_wait(origin.caller, work_s, now_s), size_class(work_s) + MUCH_SHORTER
        shorter_s = sum(item.waiting.work_s for size, item in self._sizes.items() if size < largest)
        return WaitEstimate(min(estimate.work_ahead_s, shorter_s / SHORT_RATIO), estimate.others_served_less)


def _turn_key(job: Job, key: JobKey) -> JobKey:
    """Return the key of a job under rule 1, given its key by size."""
    batch_s = job.model.max_batch_tokens * job.seconds_per_token
    return max(key[0], size_class(batch_s)), key[1], key[2]
