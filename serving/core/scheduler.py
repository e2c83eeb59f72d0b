"""Dynamic batching across calls and models with a fixed number of cores. Knows neither gRPC nor engines.

A batch is formed when a worker becomes free: under load the queue fills in the meantime, without load nothing waits. A
request that cannot be done in time is refused immediately.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from serving.core.errors import (
    ComputeError,
    DeadlineTooShortError,
    ExpiredError,
    QueueFullError,
    RefusedError,
    TooLargeError,
)
from serving.core.job import ANYONE, AbortableRun, BatchModel, Entry, Job, JobFuture, Origin
from serving.core.latency_model import LatencyModel
from serving.core.queue import Queue

logger = logging.getLogger(__name__)

HEADROOM = 1.4
"""Minimum ratio of the time left until a deadline to the estimated time, before texts are tokenized. Under overload the
queue grows until admitted requests just meet their deadlines by the estimate; slightly low estimates would make them
late."""
FINAL_HEADROOM = 1.25
"""The same ratio after texts are tokenized: lower, so that few requests are refused after that work is done."""
RESERVE = 0.2
"""Fraction of the queue that a caller leaves to callers with less core time. Otherwise the caller that was just served
would take each free place before refused callers try again."""
ABORT_S = 5.0
"""Seconds that an aborted run may take to end; after that its worker is lost."""


@dataclass(frozen=True, slots=True)
class BatchStats:
    """Sizes and times of one computed batch."""

    rows: int
    num_tokens: int
    padded_tokens: int
    queue_s: Sequence[float]
    """Seconds in the queue, of each sequence."""
    inference_s: float


class SchedulerObserver(Protocol):
    """Receiver of the scheduler's events, called in its worker threads unless stated otherwise."""

    def batch_done(self, model: Any, batch: BatchStats) -> None:
        """Handle the end of a batch."""

    def sequences_dropped(self, model: Any, count: int) -> None:
        """Handle sequences that were cancelled or expired before they were computed."""

    def job_refused(self, model: Any, error: RefusedError) -> None:
        """Handle a job that was not admitted. Called in the thread of the caller."""


@dataclass(eq=False)
class _RunningBatch:
    """Batch that is being computed."""

    batch: list[Entry]
    run: AbortableRun
    cores: int
    """Number of cores that the batch uses."""
    started_s: float
    aborted_s: float | None = None
    """Clock time of its abort; None if it was not aborted."""

    @property
    def model(self) -> BatchModel:
        """Model that computes the batch."""
        return self.batch[0].model

    @cached_property
    def work_s(self) -> float:
        """Estimated core seconds."""
        return sum(entry.work_s for entry in self.batch)

    def left_s(self, now_s: float) -> float:
        """Return the estimated seconds until it ends."""
        return max(0.0, self.work_s / self.cores - (now_s - self.started_s))


@dataclass(eq=False)
class _Worker:
    """Thread that computes one batch after another."""

    thread: threading.Thread | None = None
    running: _RunningBatch | None = None


class Scheduler:
    """Bounded queue and the workers that compute its batches."""

    def __init__(
        self,
        *,
        workers: int,
        observer: SchedulerObserver,
        max_queue_s: float = 10.0,
        max_run_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the workers.

        Args:
            workers: number of cores, which is also the maximum number of batches computed at the same time.
            observer: receiver of the scheduler's events.
            max_queue_s: maximum estimated seconds of waiting plus computing; jobs above it are refused.
            max_run_s: maximum seconds of a batch; longer ones are aborted.
            clock: returns the current time in seconds; deadlines refer to it.
        """
        self._clock = clock
        self.latency_model = LatencyModel()
        self._num_cores, self._max_queue_s, self._max_run_s = workers, max_queue_s, max_run_s
        self._observer = observer
        self._queue = Queue()
        self._changed = threading.Condition()
        self._closed = False
        self._busy = 0
        """Number of cores that running batches use."""
        self._workers: list[_Worker] = []
        for _ in range(workers):
            self._start_worker()

    def queued_sequences(self, model: BatchModel) -> int:
        """Return the number of sequences that wait for a model."""
        return self._queue.sequences[model]

    def queued_tokens(self, model: BatchModel) -> int:
        """Return the number of tokens that wait for a model."""
        return self._queue.tokens[model]

    def affordable_tokens(self, model: BatchModel, deadline_s: float) -> float:
        """Return the estimated tokens that all cores compute before a deadline."""
        return max(0.0, deadline_s - self._clock()) * self._num_cores / self.latency_model.seconds_per_token(model)

    def check(
        self,
        model: BatchModel,
        num_tokens: int,
        deadline_s: float | None = None,
        *,
        best_effort: bool = False,
        origin: Origin = ANYONE,
    ) -> None:
        """Raise the error that `submit` would raise for a job, before its texts are tokenized.

        Args:
            model: model that computes the job.
            num_tokens: estimated tokens of the job.
            deadline_s: deadline in seconds on the scheduler's clock; None without one.
            best_effort: as for `submit`.
            origin: caller and class of the job.

        Raises:
            RefusedError: as `submit` does.
        """
        estimate = self.latency_model.seconds_per_token(model)
        with self._report_refusal(model), self._changed:
            try:
                self._admit(model, num_tokens, estimate, deadline_s, HEADROOM, origin, best_effort=best_effort)
            except (TooLargeError, DeadlineTooShortError):
                initial = self.latency_model.initial_seconds_per_token(model)
                if self._busy or self._queue.first() or initial >= estimate:
                    raise
                # The server is idle: no batch would correct an estimate that is too high.
                self._admit(model, num_tokens, initial, deadline_s, HEADROOM, origin, best_effort=best_effort)
                self.latency_model.reset(model)

    def submit(
        self,
        model: BatchModel,
        groups: Sequence[Sequence[Any]],
        finish: Callable[[int, list[Any]], Any],
        *,
        deadline_s: float | None = None,
        best_effort: bool = False,
        origin: Origin = ANYONE,
    ) -> JobFuture:
        """Queue groups of sequences.

        Args:
            model: model that computes the sequences.
            groups: sequences by result, such as the windows of one text; no group may be empty.
            finish: converts the index and the outputs of a group to its result. Called in a worker as soon as a group
                is complete, so that the outputs of large requests need not stay in memory.
            deadline_s: deadline in seconds on the scheduler's clock; None without one.
            best_effort: True if the deadline ends the job with the outputs that it has by then; `finish` takes None
                for the others. Batches that would end too late are not computed. Somebody must call `end_early` of the
                future at the deadline, as all workers may be busy then.
            origin: caller and class of the job.

        Returns:
            Future of the results of `finish` and the job's times; its error is ExpiredError or ComputeError.
            Cancelling it drops the sequences that still wait.

        Raises:
            QueueFullError: when the job would wait too long.
            TooLargeError: when it takes too long even with an empty queue.
            DeadlineTooShortError: when its estimated wait plus compute time exceeds the deadline.
        """
        estimate = self.latency_model.seconds_per_token(model)
        job = Job(
            model,
            groups,
            finish,
            deadline_s=deadline_s,
            seconds_per_token=estimate,
            best_effort=best_effort,
            origin=origin,
            now_s=self._clock(),
        )
        longest = max((len(entry.sequence) for entry in job.entries), default=0)
        with self._report_refusal(model), self._changed:
            try:
                self._admit(
                    model,
                    job.num_tokens,
                    estimate,
                    deadline_s,
                    FINAL_HEADROOM,
                    origin,
                    longest,
                    best_effort=best_effort,
                )
            except RefusedError:
                job.entries.clear()  # breaks the reference cycle of job and entries: no garbage collector needed
                raise
            self._queue.add(job)
            self._wake_worker()
        # Weak reference: otherwise future and job form a cycle that keeps arrays until the garbage collector runs.
        reference = weakref.ref(job)
        job.future.add_done_callback(lambda _: self._remove_ended(reference()))
        return job.future

    @contextmanager
    def _report_refusal(self, model: BatchModel) -> Iterator[None]:
        try:
            yield
        except RefusedError as error:
            self._observer.job_refused(model, error)
            raise

    def close(self) -> None:
        """Cancel waiting jobs, abort running batches and end the workers. May be called again.

        Raises:
            RuntimeError: when a run does not end after its abort.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for running in self._running_batches():
            self._abort(running)
        while True:
            with self._changed:  # other threads may remove cancelled entries at the same time
                batch = self._queue.pop_batch()
            if not batch:
                break
            for entry in batch:
                entry.job.future.cancel()
        threads = [worker.thread for worker in self._workers if worker.thread]
        ends_s = time.monotonic() + ABORT_S
        for thread in threads:
            thread.join(max(0.0, ends_s - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            raise _stuck_run_error()

    def check_workers(self) -> str:
        """Abort batches that take too long and replace workers that have ended. To be called about once a second.

        Returns:
            Problems as one line of text; empty if there are none.

        Raises:
            RuntimeError: when a run does not end after its abort: its core is lost.
        """
        now, problems = self._clock(), []
        for worker in list(self._workers):
            thread, running = worker.thread, worker.running
            if thread and not thread.is_alive() and not self._closed:
                problems.append("a worker thread ended and was replaced")
                self._replace(worker)
            elif running and now - running.started_s > self._max_run_s:
                problems.append(f"a batch takes longer than {self._max_run_s:g} s")
                if running.aborted_s is None:
                    count = len(running.batch)
                    logger.error("aborted a batch of %d sequences: it takes longer than %g s", count, self._max_run_s)
                    self._abort(running)
                elif now - running.aborted_s > ABORT_S:
                    raise _stuck_run_error()
        return "; ".join(problems)

    def _admit(
        self,
        model: BatchModel,
        num_tokens: int,
        seconds_per_token: float,
        deadline_s: float | None,
        headroom: float,
        origin: Origin,
        longest: int = 0,
        *,
        best_effort: bool,
    ) -> None:
        """Raise an error if a job cannot be done in time.

        Args:
            longest: tokens of the longest sequence; 0 if unknown.
        """
        now_s, work_s = self._clock(), num_tokens * seconds_per_token
        estimate_wait = self._queue.order.estimate_wait(origin, work_s, now_s)
        wait_s = self._wait_s(now_s, estimate_wait.work_ahead_s, self._cores(model))
        # Sequences may run in parallel on all cores; one sequence alone uses only the cores of its batch.
        own_s = max(longest * seconds_per_token / self._cores(model), work_s / self._num_cores)
        if best_effort and deadline_s is not None:
            own_s, deadline_s = min(own_s, max(0.0, deadline_s - now_s)), None
        if own_s > self._max_queue_s:
            raise TooLargeError(
                f"the request takes about {own_s:.1f} s, more than the limit of {self._max_queue_s:g} s (--max-queue-s "
                "of the server); send fewer inputs per call"
            )
        total_s = wait_s + own_s
        limit_s = self._max_queue_s * (1 - RESERVE if estimate_wait.others_served_less else 1)
        if total_s > limit_s:
            self._queue.order.refuse(origin, now_s)
            raise QueueFullError("the queue is full; try later", retry_s=total_s - limit_s)
        if deadline_s is not None and now_s + headroom * total_s > deadline_s:
            left_s = max(0.0, deadline_s - now_s)
            reserve = f", less than the needed margin of {headroom - 1:.0%}" if left_s >= total_s else ""
            raise DeadlineTooShortError(
                f"the deadline cannot be met: about {total_s:.3g} s are needed, {left_s:.3g} s are left{reserve}; "
                "allow more time",
                retry_s=wait_s,
            )

    def _wait_s(self, now_s: float, work_ahead_s: float, num_cores: int) -> float:
        """Return the estimated seconds until the first batch of a job starts.

        It starts when the work ahead is done and enough cores are free.

        Args:
            work_ahead_s: core seconds of the work ahead.
            num_cores: cores that a batch of the job uses.
        """
        left = sorted((running.left_s(now_s), self._cores(running.model)) for running in self._running_batches())
        free, free_s = self._num_cores - self._busy, 0.0
        for seconds, count in left:
            if free >= num_cores:
                break
            free, free_s = free + count, seconds
        if not work_ahead_s:
            return free_s
        return max(free_s, (work_ahead_s + sum(seconds * count for seconds, count in left)) / self._num_cores)

    def _running_batches(self) -> list[_RunningBatch]:
        """Return the running batches; a snapshot, as workers begin and end batches at any time."""
        return [running for worker in list(self._workers) if (running := worker.running)]

    def _start_worker(self) -> None:
        worker = _Worker()
        worker.thread = threading.Thread(target=self._work, args=(worker,), name="worker", daemon=True)
        self._workers.append(worker)
        worker.thread.start()

    def _replace(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        if worker.running:
            self._fail(worker.running.batch, "its worker thread ended")
            self._release(worker.running.model)
        self._start_worker()

    def _abort(self, running: _RunningBatch) -> None:
        running.aborted_s = self._clock()
        self._fail(running.batch, "the run did not end in time")
        running.run.abort()

    def _work(self, worker: _Worker) -> None:
        while self._work_once(worker):
            pass

    def _work_once(self, worker: _Worker) -> bool:
        """Compute one batch. A separate function, so that an idle worker keeps no arrays and no unloaded model."""
        if not (batch := self._next_batch()):
            return False
        model = batch[0].model
        if live := self._live(batch):
            running = None
            try:
                worker.running = running = self._begin(live)
                if self._closed:  # `close` may have missed this batch
                    self._abort(running)
                outputs = model.compute([entry.sequence for entry in live], running.run)
                self._end(running, outputs)
            except BaseException as error:  # after any error, the worker goes on with the next batch
                if not (running and running.aborted_s is not None):
                    logger.exception("a batch of %d sequences failed", len(live))
                self._fail(live, type(error).__name__)
            worker.running = None
        self._release(model)
        return True

    def _begin(self, batch: list[Entry]) -> _RunningBatch:
        model, now_s = batch[0].model, self._clock()
        for job in {entry.job for entry in batch}:
            job.start(now_s)
        return _RunningBatch(batch, model.new_run(), self._cores(model), now_s)

    def _end(self, running: _RunningBatch, outputs: Sequence[Any]) -> None:
        """Report a computed batch, deliver its outputs, and update the latency model."""
        batch, model, started_s = running.batch, running.model, running.started_s
        ended_s = self._clock()
        lengths = [len(entry.sequence) for entry in batch]
        waits = [started_s - entry.job.submitted_s for entry in batch]
        padded = len(batch) * max(lengths)
        self._observer.batch_done(model, BatchStats(len(batch), sum(lengths), padded, waits, ended_s - started_s))
        for entry, output in zip(batch, outputs, strict=True):
            try:
                entry.job.deliver(entry, output, ended_s)
            except ComputeError as error:
                entry.job.fail(error)
            except Exception as error:
                logger.exception("an output could not be decoded")
                entry.job.fail(ComputeError(f"the output could not be decoded: {type(error).__name__}"))
        self.latency_model.observe_batch(model, sum(lengths), (self._clock() - started_s) * running.cores)

    def _fail(self, batch: list[Entry], reason: str) -> None:
        for entry in batch:
            entry.job.fail(ComputeError(f"the model failed: {reason}"))

    def _next_batch(self) -> list[Entry]:
        """Wait for a batch and reserve its cores; return an empty list when the scheduler closes."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_room())
            if self._closed:
                return []
            batch = self._take()
            self._wake_worker()
            return batch

    def _take(self) -> list[Entry]:
        """Pop the next batch and reserve its cores; enough must be free."""
        batch = self._queue.pop_batch()
        self._busy += self._cores(batch[0].model)
        return batch

    def _wake_worker(self) -> None:
        """Wake one worker if it can take a batch; it wakes the next one. Others would only take the interpreter lock
        from the threads that work, which matters where a batch uses many cores or a GPU."""
        if self._has_room():
            self._changed.notify()

    def _live(self, batch: list[Entry]) -> list[Entry]:
        """Return the entries of jobs that have not ended and want their outputs; fail or end expired jobs."""
        now = self._clock()
        expired = {entry.job for entry in batch if entry.job.deadline_s is not None and entry.job.deadline_s <= now}
        for job in expired:
            if job.best_effort:
                job.end_early(now)
            else:
                job.fail(ExpiredError("the deadline passed before the model was free"))
        ended = Counter(entry.job for entry in batch if entry.job.future.done())
        for job, count in ended.items():
            self._report_dropped(job, count)
        ends_s = now + sum(entry.work_s for entry in batch) / self._cores(batch[0].model)
        return [entry for entry in batch if entry.job not in ended and not entry.job.ends_before(ends_s)]

    def _has_room(self) -> bool:
        """Return whether enough cores are free for the next entry."""
        if self._busy >= self._num_cores:
            return False
        first = self._queue.first()
        return first is not None and self._busy + self._cores(first.model) <= self._num_cores

    def _cores(self, model: BatchModel) -> int:
        return min(model.num_threads, self._num_cores)

    def _release(self, model: BatchModel) -> None:
        """Free the cores of a batch. Its worker looks for the next one itself."""
        with self._changed:
            self._busy -= self._cores(model)

    def _remove_ended(self, job: Job | None) -> None:
        """Remove the entries of an ended job that still wait."""
        if job:
            with self._changed:
                count = self._queue.remove(job.entries)
                job.entries.clear()
                if count:  # one of them may have blocked the queue because it needs more cores than are free
                    self._wake_worker()
            self._report_dropped(job, count)

    def _report_dropped(self, job: Job, count: int) -> None:
        """Report sequences of a cancelled or expired job that are not computed."""
        if count and (job.future.cancelled() or isinstance(job.future.exception(), ExpiredError)):
            self._observer.sequences_dropped(job.model, count)


def _stuck_run_error() -> RuntimeError:
    return RuntimeError(f"a run did not end within {ABORT_S:g} s after its abort")
