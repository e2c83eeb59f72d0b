"""Types of the scheduler, its queue and its fair order: models, runs, jobs and their entries."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence, Sized
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from serving.core.errors import ComputeError


class AbortableRun(Protocol):
    """Computation that another thread can abort."""

    def abort(self) -> None:
        """End the computation with an exception as soon as possible, or prevent its start."""


class BatchModel(Hashable, Protocol):
    """Model that computes batches of sequences."""

    @property
    def max_batch_tokens(self) -> int:
        """Maximum tokens of a batch, padding included."""

    @property
    def num_threads(self) -> int:
        """Number of cores that a batch uses."""

    @property
    def measured_batches(self) -> Sequence[tuple[int, float]]:
        """(tokens, core seconds) of the batches measured at load time; at least one."""

    @property
    def run_tokens(self) -> float:
        """Number of tokens that take as long as what every run takes besides its tokens: few on a CPU, many on a
        GPU."""

    def new_run(self) -> AbortableRun:
        """Return a run for one call of `compute`."""

    def compute(self, sequences: Sequence[Any], run: Any) -> Sequence[Any]:
        """Return one output for each sequence.

        Args:
            sequences: the batch.
            run: result of `new_run`.
        """


@dataclass(frozen=True, slots=True)
class Origin:
    """Caller and priority class of a job. Fair order divides the core time between callers of a class."""

    caller: Hashable = None
    """Key of the caller; jobs of one caller share its core time."""
    is_bulk: bool = False
    """True if the job waits for all interactive jobs."""


ANYONE = Origin()
"""Origin of jobs without a known caller."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """Results and times of a job."""

    results: list[Any]
    """One result per group."""
    queue_s: float = 0.0
    """Seconds from submission to the start of its first batch."""
    inference_s: float = 0.0
    """Seconds from the start of its first batch to the end of its last."""


@dataclass(eq=False, slots=True)
class Entry:
    """One sequence of a job."""

    job: Job
    group: int
    index_in_group: int
    sequence: Sized
    work_s: float
    """Estimated core seconds."""
    is_waiting: bool = False
    """True while the entry is in the queue."""

    @property
    def model(self) -> BatchModel:
        """Model of the job."""
        return self.job.model


def size_class(work_s: float) -> int:
    """Return the size class of a job: the exponent of the power of two above its core seconds."""
    return math.frexp(work_s)[1]


class JobFuture(Future[JobResult]):
    """Future of a job, which is referred to weakly: a cycle would keep arrays until the garbage collector runs."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = weakref.ref(job)

    def end_early(self, now_s: float) -> None:
        """End the job with the outputs that it has, as `Job.end_early`."""
        if job := self.job():
            job.end_early(now_s)


class Job:
    """Groups of sequences that were submitted together; each group becomes one result."""

    def __init__(
        self,
        model: BatchModel,
        groups: Sequence[Sequence[Any]],
        finish: Callable[[int, list[Any]], Any],
        *,
        deadline_s: float | None,
        seconds_per_token: float,
        best_effort: bool = False,
        origin: Origin = ANYONE,
        now_s: float = 0.0,
    ) -> None:
        self.model, self.deadline_s, self.seconds_per_token = model, deadline_s, seconds_per_token
        self.best_effort = best_effort
        self.origin = origin
        self.num_waiting = 0
        """Number of entries in the queue."""
        self.future = JobFuture(self)
        self.entries = [
            Entry(self, group, index, sequence, len(sequence) * seconds_per_token)
            for group, sequences in enumerate(groups)
            for index, sequence in enumerate(sequences)
        ]
        self.num_tokens = sum(len(entry.sequence) for entry in self.entries)
        self.work_s = seconds_per_token * self.num_tokens
        """Estimated core seconds of all entries."""
        self.size_class = size_class(self.work_s)
        self.submitted_s = now_s
        self._first_waiting = 0
        """Index of an entry before which none waits."""
        self._started_s: float | None = None
        self._finish = finish
        self._outputs: list[list[Any]] = [[None] * len(sequences) for sequences in groups]
        self._num_missing = [len(sequences) for sequences in groups]
        self._results: list[Any] = [None] * len(groups)
        self._num_unfinished = len(groups)
        self._lock = threading.Lock()
        if not groups:
            self.future.set_result(JobResult([]))

    def first_waiting(self) -> Entry:
        """Return the first waiting entry; there must be one."""
        while not self.entries[self._first_waiting].is_waiting:
            self._first_waiting += 1
        return self.entries[self._first_waiting]

    def start(self, now_s: float) -> None:
        """Record the start of a batch; the first one counts."""
        with self._lock:
            self._started_s = self._started_s or now_s

    def deliver(self, entry: Entry, output: Any, now_s: float) -> None:
        """Store the output of an entry. The last entry finishes its group, the last group finishes the job."""
        with self._lock:
            if not self._num_missing[entry.group]:  # the job has ended early
                return
            outputs = self._outputs[entry.group]
            outputs[entry.index_in_group] = output
            self._num_missing[entry.group] -= 1
            if self._num_missing[entry.group] or self.future.done():
                return
            self._outputs[entry.group] = []
        self._complete(entry.group, outputs, now_s)

    def ends_before(self, now_s: float) -> bool:
        """Return whether the deadline ends the job before a time, so that later outputs are of no use."""
        return self.best_effort and self.deadline_s is not None and self.deadline_s < now_s

    def end_early(self, now_s: float) -> None:
        """Finish all groups with the outputs that they have; missing ones are None."""
        with self._lock:
            groups = [group for group, missing in enumerate(self._num_missing) if missing]
            outputs = [self._outputs[group] for group in groups]
            for group in groups:
                self._num_missing[group], self._outputs[group] = 0, []
        try:
            for group, found in zip(groups, outputs, strict=True):
                self._complete(group, found, now_s)
        except ComputeError as error:
            self.fail(error)

    def _complete(self, group: int, outputs: list[Any], now_s: float) -> None:
        result = self._finish(group, outputs)
        with self._lock:
            self._results[group] = result
            self._num_unfinished -= 1
            if self._num_unfinished:
                return
        started_s = self._started_s or self.submitted_s
        done = JobResult(self._results, started_s - self.submitted_s, now_s - started_s)
        with suppress(InvalidStateError):  # cancelled just now
            self.future.set_result(done)

    def fail(self, error: Exception) -> None:
        """Set the error of the job, unless it has ended already."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)
