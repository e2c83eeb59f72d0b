"""Dynamic batching across calls and models, with one budget of workers. Knows neither gRPC nor ONNX Runtime.

A batch is formed when a worker frees: under load the queue fills meanwhile, without load nothing waits.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from serving.queue import Entry, Model, Queue

logger = logging.getLogger(__name__)


class QueueFullError(Exception):
    """There is no room in the queue; nothing was computed."""

    def __init__(self, num_tokens: int, max_queue_tokens: int) -> None:
        self.too_large = num_tokens > max_queue_tokens
        """Whether not even an empty queue would take it."""
        limit = f"the request holds {num_tokens} tokens, the queue takes {max_queue_tokens}"
        super().__init__(f"{limit}; send fewer inputs per call" if self.too_large else "the queue is full; try later")


class ExpiredError(Exception):
    """The deadline passed before all was computed."""


class ComputeError(Exception):
    """A model failed on a batch, or its outputs could not be decoded."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one run did."""

    rows: int
    num_tokens: int
    padded_tokens: int
    queue_s: Sequence[float]
    """How long each sequence waited."""
    inference_s: float


@dataclass(frozen=True, slots=True)
class Done:
    """What became of groups that were submitted together."""

    results: list[Any]
    """One a group."""
    queue_s: float = 0.0
    """From submission until the first sequence was taken."""
    inference_s: float = 0.0
    """From then until all was computed."""


class Observer(Protocol):
    """Is told what the scheduler does, from its threads."""

    def batch_done(self, model: Any, batch: Batch) -> None:
        """A batch was computed."""

    def sequences_dropped(self, model: Any, count: int) -> None:
        """Sequences left the queue without being computed: cancelled or expired."""


class Job:
    """Groups of sequences submitted together; each group becomes one result."""

    def __init__(
        self,
        model: Model,
        groups: Sequence[Sequence[Any]],
        finish: Callable[[int, list[Any]], Any],
        deadline_s: float | None,
    ) -> None:
        self.model = model
        self.deadline_s = deadline_s
        self.future: Future[Done] = Future()
        self._submitted_s = self._started_s = now = time.monotonic()
        self._started = False
        self.entries = [
            Entry(self, group, place, sequence, now)
            for group, sequences in enumerate(groups)
            for place, sequence in enumerate(sequences)
        ]
        self._finish = finish
        self._outputs: list[list[Any]] = [[None] * len(sequences) for sequences in groups]
        self._missing = [len(sequences) for sequences in groups]
        self._results: list[Any] = [None] * len(groups)
        self._unfinished = len(groups)
        self._lock = threading.Lock()
        if not groups:
            self.future.set_result(Done([]))

    def start(self, now_s: float) -> None:
        """Some of its sequences are computed from now on."""
        with self._lock:
            if not self._started:
                self._started, self._started_s = True, now_s

    def deliver(self, entry: Entry, output: Any) -> None:
        """Take the output of one sequence; the last of a group finishes the group, the last group the job."""
        with self._lock:
            outputs = self._outputs[entry.group]
            outputs[entry.place] = output
            self._missing[entry.group] -= 1
            if self._missing[entry.group] or self.future.done():
                return
            self._outputs[entry.group] = []
        result = self._finish(entry.group, outputs)
        with self._lock:
            self._results[entry.group] = result
            self._unfinished -= 1
            finished = not self._unfinished
        if finished:
            with suppress(InvalidStateError):  # cancelled just now
                self.future.set_result(self._done())

    def _done(self) -> Done:
        waited_s = self._started_s - self._submitted_s
        return Done(self._results, waited_s, time.monotonic() - self._started_s)

    def fail(self, error: Exception) -> None:
        """End the job, unless it has ended already."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)


class Scheduler:
    """A bounded queue and the workers that empty it."""

    def __init__(self, *, workers: int, max_queue_tokens: int, observer: Observer) -> None:
        """Start the workers.

        Args:
            workers: cores: as many batches of models with one thread are computed at the same time.
            max_queue_tokens: tokens that may wait.
        """
        self._max_queue_tokens = max_queue_tokens
        self._observer = observer
        self._queue = Queue()
        self._changed = threading.Condition()
        self._closed = False
        self._workers = workers
        self._busy = 0
        """Cores that batches under way take."""
        self._threads = [
            threading.Thread(target=self._work, name=f"worker-{number}", daemon=True) for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def check_room(self, num_tokens: int) -> None:
        """Raise QueueFullError where so many tokens would not be taken now."""
        if self._queue.num_tokens + num_tokens > self._max_queue_tokens:
            raise QueueFullError(num_tokens, self._max_queue_tokens)

    def queued_tokens(self, model: Model) -> int:
        """Tokens that wait for a model."""
        return self._queue.tokens[model]

    def submit(
        self,
        model: Model,
        groups: Sequence[Sequence[Any]],
        finish: Callable[[int, list[Any]], Any],
        *,
        deadline_s: float | None = None,
    ) -> Future[Done]:
        """Queue groups of sequences.

        Args:
            model: computes them.
            groups: one group for each result (the windows of an example), each of at least one sequence.
            finish: called in a worker with the number of a group and its outputs, as soon as they are complete, so that
                the outputs of large requests need not all be kept.
            deadline_s: on the clock of `time.monotonic`.

        Returns:
            Will hold what `finish` returned for each group and how long it took, or ExpiredError or ComputeError. Cancelling it drops what
            still waits.

        Raises:
            QueueFullError: when it does not fit.
        """
        job = Job(model, groups, finish, deadline_s)
        with self._changed:
            self.check_room(sum(len(entry.sequence) for entry in job.entries))
            for entry in job.entries:
                self._queue.add(entry)
            self._changed.notify(len(job.entries))
        # Weak: a job that its own future kept would hold its arrays until the garbage collector comes.
        reference = weakref.ref(job)
        job.future.add_done_callback(lambda _: self._forget(reference()))
        return job.future

    def close(self) -> None:
        """Cancel what waits, finish the batches under way, and end the workers."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        while entry := self._queue.oldest():
            entry.job.future.cancel()

    def _work(self) -> None:
        while batch := self._next_batch():
            try:
                self._run(batch)
            except Exception as error:
                logger.exception("a batch of %d sequences failed", len(batch))
                for entry in batch:
                    entry.job.fail(ComputeError(f"the model failed: {type(error).__name__}"))
            finally:
                self._release(batch[0].model)

    def _next_batch(self) -> list[Entry]:
        """Wait for work. Empty when the scheduler closes."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._has_room())
                if self._closed:
                    return []
                batch = self._queue.pop_batch()
                self._busy += self._cores(batch[0].model)
            now = time.monotonic()
            expired = {entry.job for entry in batch if entry.job.deadline_s is not None and entry.job.deadline_s <= now}
            for job in expired:
                job.fail(ExpiredError("the deadline passed before the model was free"))
            live = [entry for entry in batch if not entry.job.future.done()]
            if len(live) < len(batch):
                self._observer.sequences_dropped(batch[0].model, len(batch) - len(live))
            if live:
                return live
            self._release(batch[0].model)

    def _has_room(self) -> bool:
        """Whether there are cores for the oldest entry."""
        oldest = self._queue.oldest()
        return oldest is not None and self._busy + self._cores(oldest.model) <= self._workers

    def _cores(self, model: Model) -> int:
        return min(model.num_threads, self._workers)

    def _release(self, model: Model) -> None:
        with self._changed:
            self._busy -= self._cores(model)
            self._changed.notify_all()

    def _run(self, batch: list[Entry]) -> None:
        model = batch[0].model
        started = time.monotonic()
        for job in {entry.job for entry in batch}:
            job.start(started)
        outputs = model.compute([entry.sequence for entry in batch])
        ended = time.monotonic()
        lengths = [len(entry.sequence) for entry in batch]
        waits = [started - entry.enqueued_s for entry in batch]
        self._observer.batch_done(
            model, Batch(len(batch), sum(lengths), len(batch) * max(lengths), waits, ended - started)
        )
        for entry, output in zip(batch, outputs, strict=True):
            try:
                entry.job.deliver(entry, output)
            except Exception as error:
                logger.exception("an output could not be decoded")
                entry.job.fail(ComputeError(f"the output could not be decoded: {type(error).__name__}"))

    def _forget(self, job: Job | None) -> None:
        """Take what is left of an ended job out of the queue."""
        if job:
            with self._changed:
                count = sum(self._queue.remove(entry) for entry in job.entries)
            job.entries.clear()
            if count:
                self._observer.sequences_dropped(job.model, count)
