"""Discrete-event simulation of the real scheduler with a simulated clock and simulated cores."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from dataclasses import dataclass, field

from serving.core.errors import RefusedError
from serving.core.scheduler import Origin, Scheduler

SECONDS_PER_TOKEN, SECONDS_PER_RUN = 10e-6, 100e-6


class SimulatedModel:
    """Model with a computed batch time and no outputs."""

    def __init__(self, *, max_batch_tokens=256, num_threads=1, speed=1.0):
        self.max_batch_tokens, self.num_threads, self.speed = max_batch_tokens, num_threads, speed

    @property
    def measured_batches(self):
        return [(tokens, self.seconds(tokens)) for tokens in (6, 2 * self.max_batch_tokens)]

    @property
    def run_tokens(self):
        return SECONDS_PER_RUN / SECONDS_PER_TOKEN

    def seconds(self, padded_tokens):
        """Return the core seconds of a batch."""
        return (SECONDS_PER_RUN + padded_tokens * SECONDS_PER_TOKEN) / self.speed

    def new_run(self):
        return None


class _Ignore:
    def batch_done(self, model, batch):
        pass

    def sequences_dropped(self, model, count):
        pass

    def job_refused(self, model, error):
        pass


class SimulatedScheduler(Scheduler):
    """Scheduler without threads; `Simulation` computes its batches."""

    def __init__(self, cores, clock, **settings):
        self.running = []
        super().__init__(workers=cores, observer=_Ignore(), clock=clock, **settings)

    def _start_worker(self):
        pass

    def _running_batches(self):
        return self.running

    def next_batch(self):
        """Return a batch that starts now; None if no cores are free or nothing waits."""
        while self._has_room():
            batch = self._take()
            if live := self._live(batch):
                self.running.append(batch_running := self._begin(live))
                return batch_running
            self._release(batch[0].model)
        return None

    def end(self, batch_running):
        self.running.remove(batch_running)
        self._end(batch_running, [None] * len(batch_running.batch))
        self._release(batch_running.model)


@dataclass
class Record:
    """Results of the requests of one caller."""

    waits_s: list[float] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    refused: int = 0
    late: int = 0
    done_tokens: int = 0


class Simulation:
    """Cores, a scheduler and callers."""

    def __init__(self, cores, **settings):
        self.now_s, self.cores = 0.0, cores
        self.scheduler = SimulatedScheduler(cores, lambda: self.now_s, **settings)
        self.records = defaultdict(Record)
        self.busy_s = 0.0
        self.longest_batch_s = 0.0
        self._events = []
        self._numbers = itertools.count()

    def at(self, time_s, function, *arguments):
        """Schedule a function call."""
        heapq.heappush(self._events, (time_s, next(self._numbers), function, arguments))

    def run(self, until_s):
        """Advance the clock."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, function, arguments = heapq.heappop(self._events)
            function(*arguments)
            while batch_running := self.scheduler.next_batch():
                lengths = [len(entry.sequence) for entry in batch_running.batch]
                core_s = batch_running.model.seconds(len(lengths) * max(lengths))
                seconds = core_s / batch_running.cores
                self.busy_s += core_s
                self.longest_batch_s = max(self.longest_batch_s, seconds)
                self.at(self.now_s + seconds, self.scheduler.end, batch_running)
        self.now_s = until_s

    def ask(self, caller, model, lengths, *, is_bulk=False, timeout_s=None, then=None, again_s=None):
        """Submit one request.

        Args:
            lengths: tokens of each sequence.
            then: called when it has ended.
            again_s: after which a refused one is tried again; None for never.
        """
        record, asked_s = self.records[caller], self.now_s
        deadline_s = None if timeout_s is None else self.now_s + timeout_s
        origin = Origin(caller, is_bulk)
        try:
            self.scheduler.check(model, sum(lengths), deadline_s, origin=origin)
            future = self.scheduler.submit(
                model,
                [[range(length)] for length in lengths],
                lambda group, outputs: None,
                deadline_s=deadline_s,
                origin=origin,
            )
        except RefusedError:
            record.refused += 1
            if again_s is not None:
                self.at(
                    self.now_s + again_s,
                    lambda: self.ask(
                        caller, model, lengths, is_bulk=is_bulk, timeout_s=timeout_s, then=then, again_s=again_s
                    ),
                )
            return

        def ended(future):
            if future.exception():
                record.late += 1
            else:
                record.waits_s.append(future.result().queue_s)
                record.latencies_s.append(self.now_s - asked_s)
                record.done_tokens += sum(lengths)
            if then:
                self.at(self.now_s, then)

        future.add_done_callback(ended)

    def bulk(self, caller, model, lengths, *, in_flight=1, is_bulk=False):
        """Add a caller that always has `in_flight` requests."""

        def send():
            self.ask(caller, model, lengths, is_bulk=is_bulk, then=send, again_s=0.05)

        for _ in range(in_flight):
            self.at(self.now_s, send)

    def stream(self, caller, model, length, *, period_s, until_s, timeout_s=None):
        """Add a caller that sends a short request every `period_s`."""
        time_s = 0.0
        while time_s < until_s:
            self.at(time_s, lambda: self.ask(caller, model, [length], timeout_s=timeout_s))
            time_s += period_s

    @property
    def utilisation(self):
        return self.busy_s / (self.now_s * self.cores)
