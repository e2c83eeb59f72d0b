"""Jobs: groups of sequences that are submitted together. Each group becomes one result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence, Sized
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol


class Run(Protocol):
    """Computation that can be aborted."""

    def abort(self) -> None:
        """Make it end with an exception as soon as it can, or keep it from starting."""


class Model(Hashable, Protocol):
    """Model as the scheduler sees it: computes the outputs of a batch of sequences."""

    @property
    def max_batch_tokens(self) -> int:
        """Cap of a batch in padded tokens."""

    @property
    def num_threads(self) -> int:
        """Cores that a batch takes."""

    @property
    def measured(self) -> Sequence[tuple[int, float]]:
        """Tokens of some batches, and the seconds of a core that each took when the model was loaded; at least one."""

    def new_run(self) -> Run:
        """Return a run for one call of `compute`."""

    def compute(self, sequences: Sequence[Any], run: Any) -> Sequence[Any]:
        """Return one output for each sequence.

        Args:
            run: from `new_run`.
        """


@dataclass(frozen=True, slots=True)
class Origin:
    """Caller and class of a job, by which the cores are shared."""

    caller: Hashable = None
    """Jobs of the same caller share its turns."""
    is_bulk: bool = False
    """Whether the job gives way to interactive jobs."""


ANYONE = Origin()


@dataclass(frozen=True, slots=True)
class Done:
    """Results of a job, and how long it took."""

    results: list[Any]
    """One for each group."""
    queue_s: float = 0.0
    """From submission until the first sequence was taken."""
    inference_s: float = 0.0
    """From then until all was computed."""


@dataclass(eq=False, slots=True)
class Entry:
    """One sequence of a job."""

    job: Job
    group: int
    place: int
    """Position in the group."""
    sequence: Sized
    work_s: float
    """Seconds of a core that it will take."""
    waits: bool = False
    """Whether it is in the queue."""

    @property
    def model(self) -> Model:
        """The model that it waits for."""
        return self.job.model


class Job:
    """Groups of sequences that were submitted together."""

    def __init__(
        self,
        model: Model,
        groups: Sequence[Sequence[Any]],
        finish: Callable[[int, list[Any]], Any],
        *,
        deadline_s: float | None,
        seconds_per_token: float,
        origin: Origin = ANYONE,
        now_s: float = 0.0,
    ) -> None:
        self.model, self.deadline_s, self.seconds_per_token = model, deadline_s, seconds_per_token
        self.origin = origin
        self.num_waiting = 0
        """Entries in the queue."""
        self.future: Future[Done] = Future()
        self.entries = [
            Entry(self, group, place, sequence, len(sequence) * seconds_per_token)
            for group, sequences in enumerate(groups)
            for place, sequence in enumerate(sequences)
        ]
        self.num_tokens = sum(len(entry.sequence) for entry in self.entries)
        self.work_s = seconds_per_token * self.num_tokens
        """Seconds of a core that all of it takes."""
        self.submitted_s = now_s
        self._first = 0
        """Entries before this one no longer wait."""
        self._started_s: float | None = None
        self._finish = finish
        self._outputs: list[list[Any]] = [[None] * len(sequences) for sequences in groups]
        self._missing = [len(sequences) for sequences in groups]
        self._results: list[Any] = [None] * len(groups)
        self._unfinished = len(groups)
        self._lock = threading.Lock()
        if not groups:
            self.future.set_result(Done([]))

    def first_waiting(self) -> Entry:
        """The first entry that waits; there must be one."""
        while not self.entries[self._first].waits:
            self._first += 1
        return self.entries[self._first]

    def start(self, now_s: float) -> None:
        """Note when its first sequences are computed."""
        with self._lock:
            self._started_s = self._started_s or now_s

    def deliver(self, entry: Entry, output: Any, now_s: float) -> None:
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
            if self._unfinished:
                return
        started_s = self._started_s or self.submitted_s
        done = Done(self._results, started_s - self.submitted_s, now_s - started_s)
        with suppress(InvalidStateError):  # cancelled just now
            self.future.set_result(done)

    def fail(self, error: Exception) -> None:
        """End the job, unless it has ended already."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)
