"""Order in which waiting jobs are computed. No threads, no clock, no models.

Three rules share the time of the cores, so that no job and no caller can shut out another:

1. Callers take turns: the caller that has had the least of the cores' time goes next (start-time fair queueing: Goyal,
   Vin and Cheng, SIGCOMM 1996). Its shortest job goes first; of jobs about as short, the one with the nearest deadline.
2. A job that is much shorter than the one whose turn it is goes before it, for up to SHORT_RATIO of the time.
3. The oldest job goes first for OLD_RATIO of the time, so that none waits for ever.

Jobs of the class "bulk" wait while any other job waits, except under rule 3.
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

from serving.core.job import Entry, Job, Origin

SHORT_RATIO = 0.5
"""Fraction of the cores' time in which short jobs may go before their turn."""
MUCH_SHORTER = 3
"""Sizes (powers of two) between a job and one that may go before it: an eighth of the work."""
SHORT_BURST_S = 0.25
"""Core seconds of short jobs that may go before their turn at once, after a time without any. The last half of them is
only for jobs that are 2 x MUCH_SHORTER sizes below the largest, the last quarter for 3 x MUCH_SHORTER, and so on.
Otherwise jobs of medium size would use up all that is saved, and the shortest ones would wait."""
OLD_RATIO = 0.125
"""Fraction of the cores' time for the oldest job."""
OLD_BURST_S = 0.05
"""Core seconds that the oldest job may take at once."""

NUM_SAMPLED = 256
"""Callers that a forecast looks at, at most; where there are more, it looks at every second one, every third one..."""
LARGE = 1 / 64
"""Fraction of the backlog that makes a caller one that a forecast always looks at."""
OWED_S = 2.0
"""Seconds for which a refused caller is expected to ask again."""

T = TypeVar("T")
Key = tuple[int, float, int]
"""Size, deadline and number of a job, compared in this order: the shorter goes first, then the more urgent, then the
older."""


class Rule(Enum):
    """Why a job is next."""

    TURN = 1
    SHORT = 2
    OLD = 3


@dataclass(frozen=True, slots=True)
class Pick:
    """The job that is next."""

    job: Job
    rule: Rule


@dataclass(frozen=True, slots=True)
class Outlook:
    """Forecast for a new job."""

    before_s: float
    """Core seconds of other jobs that are computed before it is done."""
    is_ahead: bool
    """Whether a caller that has had less time waits, or was refused a moment ago."""


_NOTHING_WAITS = Outlook(0.0, False)


@dataclass(slots=True)
class Backlog:
    """Waiting sequences and their work."""

    num_entries: int = 0
    work_s: float = 0.0

    def add(self, num_entries: int, work_s: float) -> None:
        """Count sequences in, or with negative numbers out."""
        self.num_entries += num_entries
        self.work_s = self.work_s + work_s if self.num_entries else 0.0  # drops rounding errors


class Allowance:
    """Core seconds that a rule may spend: a fraction of all that are computed, saved up to a limit."""

    def __init__(self, ratio: float, most_s: float, *, left_s: float) -> None:
        self._ratio, self._most_s = ratio, most_s
        self.left_s = left_s
        """Saved up; negative where the last batch took more."""

    @property
    def is_left(self) -> bool:
        """Whether the rule may take another batch."""
        return self.left_s > 0

    def count(self, work_s: float, *, is_spent: bool) -> None:
        """Account for a batch, which the rule took or did not take."""
        self.left_s = min(self._most_s, self.left_s + (self._ratio - is_spent) * work_s)


class _ByKey(Generic[T]):
    """Items by key, smallest first. A heap of keys; those of discarded items are skipped, and cleared now and then."""

    def __init__(self) -> None:
        self._items: dict[Key, T] = {}
        self._keys: list[Key] = []

    def add(self, key: Key, item: T) -> None:
        """Add an item; no other has its key."""
        self._items[key] = item
        heapq.heappush(self._keys, key)

    def discard(self, key: Key) -> None:
        """Take out the item of a key."""
        del self._items[key]
        if len(self._keys) > 64 + 2 * len(self._items):
            self._keys = sorted(self._items)

    def first(self) -> T | None:
        """The item of the smallest key; None where there is none."""
        while self._keys and self._keys[0] not in self._items:
            heapq.heappop(self._keys)
        return self._items[self._keys[0]] if self._keys else None


@dataclass(eq=False)
class _Caller:
    """The jobs of one caller that wait, and how much it has had."""

    name: Hashable
    served_s: float
    """Core seconds that it has had, on the virtual clock of its class."""
    jobs: _ByKey[Job] = field(default_factory=_ByKey)
    backlog: Backlog = field(default_factory=Backlog)


class _Turns:
    """Callers of one class, least served first."""

    def __init__(self) -> None:
        self.callers: dict[Hashable, _Caller] = {}
        """Callers with waiting jobs, and callers that had more than their share and may come back."""
        self.backlog = Backlog()
        self.now_s = 0.0
        """Virtual clock: what the least served of the waiting callers has had. A newcomer starts here."""
        self._owed: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()
        """Callers that found no room, in the order of their first refusal since they last had room: the virtual time of
        that refusal, and the time of their last one."""
        self._refused: OrderedDict[Hashable, None] = OrderedDict()
        """The same callers, in the order of their last refusal."""
        self._large: set[_Caller] = set()
        """Callers that may have LARGE of the backlog."""
        self._num_outlooks = 0
        self._heap: list[tuple[float, int, _Caller]] = []
        self._numbers = itertools.count()

    def add(self, job: Job, key: Key) -> None:
        caller = self.callers.get(job.origin.caller)
        if caller is None:
            caller = self.callers[job.origin.caller] = _Caller(job.origin.caller, self.now_s)
            self._push(caller)
        elif not caller.backlog.num_entries and caller.served_s < self.now_s:
            caller.served_s = self.now_s
            self._push(caller)
        caller.jobs.add(key, job)
        self._forgive(caller.name)

    def count(self, name: Hashable, num_entries: int, work_s: float) -> None:
        caller = self.callers[name]
        caller.backlog.add(num_entries, work_s)
        self.backlog.add(num_entries, work_s)
        if not caller.backlog.num_entries:
            self._large.discard(caller)
        elif caller.backlog.work_s > LARGE * self.backlog.work_s:
            self._large.add(caller)

    def charge(self, name: Hashable, work_s: float) -> None:
        caller = self.callers[name]
        caller.served_s += work_s
        self._push(caller)

    def _push(self, caller: _Caller) -> None:
        """Newest first among equals: a newcomer does not wait for all who came at the same virtual time."""
        heapq.heappush(self._heap, (caller.served_s, -next(self._numbers), caller))

    def next(self) -> Job | None:
        """The job whose turn it is."""
        while self._heap:
            served_s, _, caller = self._heap[0]
            if served_s == caller.served_s and caller.backlog.num_entries:
                self.now_s = max(self.now_s, served_s)
                return caller.jobs.first()
            heapq.heappop(self._heap)
            if served_s == caller.served_s and self.callers.get(caller.name) is caller:
                del self.callers[caller.name]  # all others have had as much: nothing needs to be remembered
        return None

    def refuse(self, caller: Hashable, now_s: float) -> None:
        self._owed[caller] = self._owed.get(caller, (self.now_s, now_s))[0], now_s
        self._refused[caller] = None
        self._refused.move_to_end(caller)
        self._forget_refusals(now_s)

    def _forget_refusals(self, now_s: float) -> None:
        """Forget callers that have not been refused again within OWED_S."""
        while self._refused and self._owed[first := next(iter(self._refused))][1] < now_s - OWED_S:
            self._forgive(first)

    def _forgive(self, caller: Hashable) -> None:
        if self._owed.pop(caller, None):
            del self._refused[caller]

    def outlook(self, caller: Hashable, work_s: float, now_s: float) -> Outlook:
        """Estimate the work of this class that is computed before a new job of a caller is done."""
        self._forget_refusals(now_s)
        owed_s = next(iter(self._owed.values()))[0] if self._owed else math.inf
        own = self.callers.get(caller) or _Caller(caller, self.now_s)
        until_s = max(own.served_s, self.now_s) + own.backlog.work_s + work_s
        before_s, is_ahead = own.backlog.work_s, self._owed.get(caller, (own.served_s, 0.0))[0] > owed_s
        for other, times in self._others(own):
            before_s += times * min(other.backlog.work_s, max(0.0, until_s - other.served_s))
            is_ahead = is_ahead or other.served_s < own.served_s
        return Outlook(min(before_s, self.backlog.work_s), is_ahead)

    def _others(self, own: _Caller) -> Iterator[tuple[_Caller, int]]:
        """Yield the other callers with waiting jobs, and how many each stands for: where there are very many, those
        with large backlogs and a sample of the rest, a different one each time."""
        step = 1 + len(self.callers) // NUM_SAMPLED
        if step == 1:
            yield from ((other, 1) for other in self.callers.values() if other.backlog.num_entries and other is not own)
            return
        self._large = {item for item in self._large if item.backlog.work_s > LARGE * self.backlog.work_s}
        yield from ((other, 1) for other in self._large if other is not own)
        self._num_outlooks += 1
        for other in itertools.islice(self.callers.values(), self._num_outlooks % step, None, step):
            if other.backlog.num_entries and other is not own and other not in self._large:
                yield other, step


@dataclass(slots=True)
class _Size:
    """Interactive jobs of one size."""

    backlog: Backlog = field(default_factory=Backlog)
    callers: OrderedDict[Hashable, int] = field(default_factory=OrderedDict)
    """Number of waiting jobs by caller; the caller that was last served out of turn is last."""


class FairOrder:
    """Waiting jobs, and whose turn it is."""

    def __init__(self) -> None:
        self._classes = (_Turns(), _Turns())
        """Interactive, bulk."""
        self._sizes: defaultdict[int, _Size] = defaultdict(_Size)
        self._keys: OrderedDict[Job, Key] = OrderedDict()
        """Keys of all jobs, oldest first."""
        self._short = Allowance(SHORT_RATIO, SHORT_BURST_S, left_s=SHORT_BURST_S)
        self._old = Allowance(OLD_RATIO, OLD_BURST_S, left_s=0.0)
        self._numbers = itertools.count()
        self._picked: Pick | None = None
        """The last pick, until something changes."""

    def add(self, job: Job) -> None:
        """Add a job, all of whose entries wait from now on."""
        self._picked = None
        deadline_s = math.inf if job.deadline_s is None else job.deadline_s
        key = self._keys[job] = (size_of(job.work_s), deadline_s, next(self._numbers))
        self._classes[job.origin.is_bulk].add(job, key)
        if not job.origin.is_bulk:
            callers = self._sizes[key[0]].callers
            callers[job.origin.caller] = callers.get(job.origin.caller, 0) + 1
        job.num_waiting = len(job.entries)
        self._count(job, job.num_waiting, job.work_s)

    def leave(self, entries: Sequence[Entry]) -> None:
        """Note that entries no longer wait."""
        self._picked = None
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
        self._classes[job.origin.is_bulk].callers[caller].jobs.discard(key)
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
            self._sizes[self._keys[job][0]].backlog.add(num_entries, work_s)

    def pick(self) -> Pick | None:
        """Return the job that is next and why; None where nothing waits."""
        if not self._picked:
            self._picked = self._pick()
        return self._picked

    def _pick(self) -> Pick | None:
        interactive, bulk = self._classes
        first_bulk = bulk.next()  # called in any case, as it also forgets callers that are done
        in_turn = interactive.next() or first_bulk
        if in_turn is None:
            return None
        if len(self._keys) == 1:
            return Pick(in_turn, Rule.TURN)
        oldest = next(iter(self._keys))
        first = Pick(oldest, Rule.OLD) if self._old.is_left and oldest is not in_turn else Pick(in_turn, Rule.TURN)
        if not self._short.is_left:
            return first
        shortest = self._shortest() or in_turn
        jobs = (shortest, in_turn) if self._is_much_shorter(shortest, in_turn) else (in_turn, shortest)
        largest = max((self._keys[first.job][0], *self._sizes))
        for job in jobs:
            reserved_s = SHORT_BURST_S * 0.5 ** ((largest - self._keys[job][0]) // MUCH_SHORTER)
            if self._is_much_shorter(job, first.job) and self._short.left_s > reserved_s:
                return Pick(job, Rule.SHORT)
        return first

    def _is_much_shorter(self, job: Job, other: Job) -> bool:
        return self._keys[job][0] <= self._keys[other][0] - MUCH_SHORTER

    def _shortest(self) -> Job | None:
        """Return a job of the smallest size; callers with such jobs take turns."""
        if not self._sizes:
            return None
        caller = next(iter(self._sizes[min(self._sizes)].callers))
        return self._classes[False].callers[caller].jobs.first()

    def charge(self, pick: Pick, batch: Sequence[Entry]) -> None:
        """Charge callers and rules for the batch that a pick led to, while its entries still wait."""
        self._picked = None
        work_s = sum(entry.work_s for entry in batch)
        self._short.count(work_s, is_spent=pick.rule is Rule.SHORT)
        self._old.count(work_s, is_spent=pick.rule is Rule.OLD)
        if pick.rule is Rule.SHORT and not pick.job.origin.is_bulk:
            self._sizes[self._keys[pick.job][0]].callers.move_to_end(pick.job.origin.caller)
        charges: defaultdict[Origin, float] = defaultdict(float)
        for entry in batch:
            charges[entry.job.origin] += entry.work_s
        for origin, seconds in charges.items():
            self._classes[origin.is_bulk].charge(origin.caller, seconds)

    def refuse(self, origin: Origin, now_s: float) -> None:
        """Note that a caller found no room."""
        self._classes[origin.is_bulk].refuse(origin.caller, now_s)

    def outlook(self, origin: Origin, work_s: float, now_s: float) -> Outlook:
        """Estimate what is computed before a new job is done.

        Args:
            work_s: core seconds that it takes.
            now_s: the time, on any clock.
        """
        if not self._keys:
            return _NOTHING_WAITS
        interactive, bulk = self._classes
        if origin.is_bulk:
            found = bulk.outlook(origin.caller, work_s, now_s)
            last_s = interactive.backlog.work_s + found.before_s
            oldest_s = (found.before_s + work_s) / OLD_RATIO - work_s
            return Outlook(min(last_s, oldest_s), found.is_ahead)
        found, largest = interactive.outlook(origin.caller, work_s, now_s), size_of(work_s) + MUCH_SHORTER
        shorter_s = sum(item.backlog.work_s for size, item in self._sizes.items() if size < largest)
        return Outlook(min(found.before_s, shorter_s / SHORT_RATIO), found.is_ahead)


def size_of(work_s: float) -> int:
    """Size of a job: the power of two above its core seconds."""
    return math.frexp(work_s)[1]
