"""Dynamic batching across calls and models, with one budget of workers. Knows neither gRPC nor ONNX Runtime.

A batch is formed when a worker becomes free: under load the queue fills meanwhile, without load nothing waits. A
request that cannot be done in time is refused when it comes.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
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
from serving.core.job import ANYONE, Done, Entry, Job, Model, Origin, Run
from serving.core.latency_model import Forecast
from serving.core.queue import Queue

logger = logging.getLogger(__name__)

HEADROOM = 1.4
"""The time left until a deadline must be at least so many times the forecast. Under overload the queue grows until
admitted requests are only just in time by the forecast; a forecast that is a little too low would make them late."""
LAST_HEADROOM = 1.25
"""The same, once texts are tokenised: lower, so that few admitted requests are refused after that work."""
RESERVE = 0.2
"""Fraction of the queue that a caller leaves to callers that have had less time. Otherwise the caller that was just
computed would take each free place before refused callers ask again."""
ABORT_S = 5.0
"""Seconds that an aborted run may take to end, before its worker is given up."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Sizes and times of one computed batch."""

    rows: int
    num_tokens: int
    padded_tokens: int
    queue_s: Sequence[float]
    """How long each sequence waited."""
    inference_s: float


class Observer(Protocol):
    """Receives the scheduler's events, in its threads."""

    def batch_done(self, model: Any, batch: Batch) -> None:
        """A batch was computed."""

    def sequences_dropped(self, model: Any, count: int) -> None:
        """Sequences left the queue without being computed: cancelled or expired."""


@dataclass(eq=False)
class _UnderWay:
    """A batch that is being computed."""

    batch: list[Entry]
    run: Run
    cores: int
    """Cores that it takes."""
    started_s: float
    aborted_s: float | None = None
    """When it was told to end."""

    @property
    def model(self) -> Model:
        """The model that computes it."""
        return self.batch[0].model

    def left_s(self, now_s: float) -> float:
        """Seconds until it ends, as forecast."""
        return max(0.0, self._work_s / self.cores - (now_s - self.started_s))

    @cached_property
    def _work_s(self) -> float:
        return sum(entry.work_s for entry in self.batch)


@dataclass(eq=False)
class _Worker:
    """A thread that computes one batch after the other."""

    thread: threading.Thread | None = None
    under_way: _UnderWay | None = None


class Scheduler:
    """A bounded queue and the workers that empty it."""

    def __init__(
        self,
        *,
        workers: int,
        observer: Observer,
        max_queue_s: float = 10.0,
        max_run_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the workers.

        Args:
            workers: cores: as many batches of models with one thread are computed at the same time.
            max_queue_s: a job that would wait longer is refused.
            max_run_s: a batch that takes longer is aborted.
            clock: returns seconds; deadlines are on this clock.
        """
        self._clock = clock
        self.forecast = Forecast()
        self._num_cores, self._max_queue_s, self._max_run_s = workers, max_queue_s, max_run_s
        self._observer = observer
        self._queue = Queue()
        self._changed = threading.Condition()
        self._closed = False
        self._busy = 0
        """Cores that batches under way take."""
        self._workers: list[_Worker] = []
        for _ in range(workers):
            self._start_worker()

    def queued_sequences(self, model: Model) -> int:
        """Sequences that wait for a model."""
        return self._queue.sequences[model]

    def queued_tokens(self, model: Model) -> int:
        """Tokens that wait for a model."""
        return self._queue.tokens[model]

    def check(self, model: Model, num_tokens: int, deadline_s: float | None = None, *, origin: Origin = ANYONE) -> None:
        """Raise what `submit` would raise for so many tokens, before the work of making sequences of them.

        Raises:
            RefusedError: as `submit`.
        """
        learnt = self.forecast.seconds_per_token(model)
        with self._changed:
            try:
                self._admit(model, num_tokens, learnt, deadline_s, HEADROOM, origin)
            except (TooLargeError, DeadlineTooShortError):
                measured = self.forecast.measured(model)
                if self._busy or self._queue.first() or measured >= learnt:
                    raise
                # Nothing is computed now, so no batch can teach the forecast that the model has become faster.
                self._admit(model, num_tokens, measured, deadline_s, HEADROOM, origin)
                self.forecast.forget(model)

    def submit(
        self,
        model: Model,
        groups: Sequence[Sequence[Any]],
        finish: Callable[[int, list[Any]], Any],
        *,
        deadline_s: float | None = None,
        origin: Origin = ANYONE,
    ) -> Future[Done]:
        """Queue groups of sequences.

        Args:
            model: computes them.
            groups: one group for each result (the windows of an example), each of at least one sequence.
            finish: called in a worker with the number of a group and its outputs, as soon as they are complete, so that
                the outputs of large requests need not all be kept.
            deadline_s: on the clock of `time.monotonic`.
            origin: caller and class of the job, by which the cores are shared.

        Returns:
            A future of what `finish` returned for each group and how long it took; its error is ExpiredError or
            ComputeError. Cancelling it drops the sequences that still wait.

        Raises:
            QueueFullError: when there is too much to do already.
            TooLargeError: when it is too much for an empty queue.
            DeadlineTooShortError: when the deadline would pass before all is computed.
        """
        learnt = self.forecast.seconds_per_token(model)
        job = Job(
            model,
            groups,
            finish,
            deadline_s=deadline_s,
            seconds_per_token=learnt,
            origin=origin,
            now_s=self._clock(),
        )
        longest = max((len(entry.sequence) for entry in job.entries), default=0)
        with self._changed:
            try:
                self._admit(model, job.num_tokens, learnt, deadline_s, LAST_HEADROOM, origin, longest)
            except RefusedError:
                job.entries.clear()  # they refer to the job: a cycle, until the garbage collector runs
                raise
            self._queue.add(job)
            self._changed.notify(len(job.entries))
        # Weak: a job that its own future kept would hold its arrays until the garbage collector comes.
        reference = weakref.ref(job)
        job.future.add_done_callback(lambda _: self._forget(reference()))
        return job.future

    def close(self) -> None:
        """Cancel what waits, abort what is under way, and end the workers; again is fine.

        Raises:
            RuntimeError: when a run does not end even when aborted.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for under_way in self._under_way():
            self._abort(under_way)
        while batch := self._pop_batch():
            for entry in batch:
                entry.job.future.cancel()
        threads = [worker.thread for worker in self._workers if worker.thread]
        ends_s = time.monotonic() + ABORT_S
        for thread in threads:
            thread.join(max(0.0, ends_s - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            raise _stuck()

    def _pop_batch(self) -> list[Entry]:
        """Pop a batch while callers may take theirs out of the queue."""
        with self._changed:
            return self._queue.pop_batch()

    def look_after_workers(self) -> str:
        """Abort what takes too long, and replace workers that have ended; to be called every now and then.

        Returns:
            What is wrong, in words; empty where nothing is.

        Raises:
            RuntimeError: when a run does not end even when aborted: its core is lost.
        """
        now, problems = self._clock(), []
        for worker in list(self._workers):
            thread, under_way = worker.thread, worker.under_way
            if thread and not thread.is_alive() and not self._closed:
                problems.append("a worker has ended and was replaced")
                self._replace(worker)
            elif under_way and now - under_way.started_s > self._max_run_s:
                problems.append(f"a batch takes longer than {self._max_run_s:g} s")
                if under_way.aborted_s is None:
                    count = len(under_way.batch)
                    logger.error("a batch of %d sequences takes longer than %g s: aborted", count, self._max_run_s)
                    self._abort(under_way)
                elif now - under_way.aborted_s > ABORT_S:
                    raise _stuck()
        return "; ".join(problems)

    def _admit(
        self,
        model: Model,
        num_tokens: int,
        seconds_per_token: float,
        deadline_s: float | None,
        headroom: float,
        origin: Origin,
        longest: int = 0,
    ) -> None:
        """Refuse a job that cannot be done in time.

        Args:
            longest: tokens of the longest sequence; 0 where it is not known.
        """
        now_s, work_s = self._clock(), num_tokens * seconds_per_token
        outlook = self._queue.outlook(origin, work_s, now_s)
        wait_s = self._wait_s(now_s, outlook.before_s, self._cores(model))
        # Several sequences may be computed side by side; one has the cores of its batch alone, however many are idle.
        own_s = max(longest * seconds_per_token / self._cores(model), work_s / self._num_cores)
        if own_s > self._max_queue_s:
            raise TooLargeError(
                f"the request takes about {own_s:.1f} s, more than the {self._max_queue_s:g} s that may wait; "
                "send fewer inputs per call"
            )
        total_s = wait_s + own_s
        limit_s = self._max_queue_s * (1 - RESERVE if outlook.is_ahead else 1)
        if total_s > limit_s:
            self._queue.refuse(origin, now_s)
            raise QueueFullError("the queue is full; try later", retry_s=total_s - limit_s)
        if deadline_s is not None and now_s + headroom * total_s > deadline_s:
            left_s = max(0.0, deadline_s - now_s)
            reserve = f", too little for a reserve of {headroom - 1:.0%}" if left_s >= total_s else ""
            raise DeadlineTooShortError(
                f"the deadline cannot be met: about {total_s:.3g} s are needed, {left_s:.3g} s are left{reserve}",
                retry_s=wait_s,
            )

    def _wait_s(self, now_s: float, before_s: float, num_cores: int) -> float:
        """Estimate the seconds until a job gets its first cores: enough are free, and the work before it is done.

        Args:
            before_s: core seconds that go before it.
            num_cores: cores that a batch of it takes.
        """
        left = sorted((under_way.left_s(now_s), self._cores(under_way.model)) for under_way in self._under_way())
        free, free_s = self._num_cores - self._busy, 0.0
        for seconds, count in left:
            if free >= num_cores:
                break
            free, free_s = free + count, seconds
        if not before_s:
            return free_s
        return max(free_s, (before_s + sum(seconds * count for seconds, count in left)) / self._num_cores)

    def _under_way(self) -> list[_UnderWay]:
        """The batches that are being computed; workers begin and end theirs meanwhile."""
        return [under_way for worker in list(self._workers) if (under_way := worker.under_way)]

    def _start_worker(self) -> None:
        worker = _Worker()
        worker.thread = threading.Thread(target=self._work, args=(worker,), name="worker", daemon=True)
        self._workers.append(worker)
        worker.thread.start()

    def _replace(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        if worker.under_way:
            self._fail(worker.under_way.batch, "its worker ended")
            self._release(worker.under_way.model)
        self._start_worker()

    def _abort(self, under_way: _UnderWay) -> None:
        under_way.aborted_s = self._clock()
        self._fail(under_way.batch, "it did not end in time")
        under_way.run.abort()

    def _work(self, worker: _Worker) -> None:
        while self._work_once(worker):
            pass

    def _work_once(self, worker: _Worker) -> bool:
        """Compute one batch. A function of its own, so that an idle worker keeps no arrays and no unloaded model."""
        if not (batch := self._next_batch()):
            return False
        model = batch[0].model
        if live := self._live(batch):
            self._compute(worker, live)
        self._release(model)
        return True

    def _compute(self, worker: _Worker, batch: list[Entry]) -> None:
        under_way = None
        try:
            worker.under_way = under_way = self._begin(batch)
            if self._closed:  # `close` may not have seen that this batch is under way
                self._abort(under_way)
            outputs = under_way.model.compute([entry.sequence for entry in batch], under_way.run)
            self._end(under_way, outputs)
        except BaseException as error:  # whatever the error, the worker goes on with the next batch
            if not (under_way and under_way.aborted_s is not None):
                logger.exception("a batch of %d sequences failed", len(batch))
            self._fail(batch, type(error).__name__)
        worker.under_way = None

    def _begin(self, batch: list[Entry]) -> _UnderWay:
        model, now_s = batch[0].model, self._clock()
        for job in {entry.job for entry in batch}:
            job.start(now_s)
        return _UnderWay(batch, model.new_run(), self._cores(model), now_s)

    def _end(self, under_way: _UnderWay, outputs: Sequence[Any]) -> None:
        """Report a computed batch, learn from it, and deliver its outputs."""
        batch, model, started_s = under_way.batch, under_way.model, under_way.started_s
        ended_s = self._clock()
        lengths = [len(entry.sequence) for entry in batch]
        waits = [started_s - entry.job.submitted_s for entry in batch]
        padded = len(batch) * max(lengths)
        self._observer.batch_done(model, Batch(len(batch), sum(lengths), padded, waits, ended_s - started_s))
        for entry, output in zip(batch, outputs, strict=True):
            try:
                entry.job.deliver(entry, output, ended_s)
            except ComputeError as error:
                entry.job.fail(error)
            except Exception as error:
                logger.exception("an output could not be decoded")
                entry.job.fail(ComputeError(f"the output could not be decoded: {type(error).__name__}"))
        self.forecast.batch_done(model, sum(lengths), (self._clock() - started_s) * under_way.cores)

    def _fail(self, batch: list[Entry], reason: str) -> None:
        for entry in batch:
            entry.job.fail(ComputeError(f"the model failed: {reason}"))

    def _next_batch(self) -> list[Entry]:
        """Wait for work, and take the cores for it. Empty when the scheduler closes."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_room())
            return [] if self._closed else self._take()

    def _take(self) -> list[Entry]:
        """Take the next batch out of the queue, and the cores for it; there must be room."""
        batch = self._queue.pop_batch()
        self._busy += self._cores(batch[0].model)
        return batch

    def _live(self, batch: list[Entry]) -> list[Entry]:
        """Return the entries that somebody still waits for."""
        now = self._clock()
        expired = {entry.job for entry in batch if entry.job.deadline_s is not None and entry.job.deadline_s <= now}
        for job in expired:
            job.fail(ExpiredError("the deadline passed before the model was free"))
        ended = Counter(entry.job for entry in batch if entry.job.future.done())
        for job, count in ended.items():
            self._note_dropped(job, count)
        return [entry for entry in batch if entry.job not in ended]

    def _has_room(self) -> bool:
        """Whether there are cores for the entry that is next."""
        first = self._queue.first()
        return first is not None and self._busy + self._cores(first.model) <= self._num_cores

    def _cores(self, model: Model) -> int:
        return min(model.num_threads, self._num_cores)

    def _release(self, model: Model) -> None:
        with self._changed:
            self._busy -= self._cores(model)
            self._changed.notify_all()

    def _forget(self, job: Job | None) -> None:
        """Take what is left of an ended job out of the queue."""
        if job:
            with self._changed:
                count = self._queue.remove(job.entries)
                job.entries.clear()
                if count:  # the first entry may have been one of them, and too wide for the cores that are free
                    self._changed.notify_all()
            self._note_dropped(job, count)

    def _note_dropped(self, job: Job, count: int) -> None:
        """Report the sequences of an ended job that are not computed, unless the job failed."""
        if count and (job.future.cancelled() or isinstance(job.future.exception(), ExpiredError)):
            self._observer.sequences_dropped(job.model, count)


def _stuck() -> RuntimeError:
    return RuntimeError(f"a run did not end {ABORT_S:g} s after it was aborted")
