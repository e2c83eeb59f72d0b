"""Invariants of the scheduler for any sequence of events (stateful hypothesis test)."""

import time
from collections import Counter
from concurrent.futures import CancelledError

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from serving.core.errors import ComputeError, ExpiredError, RefusedError
from serving.core.scheduler import Scheduler
from tests.serving.reliability import wait_until

GROUPS = st.lists(st.lists(st.integers(6, 12), min_size=1, max_size=4), max_size=6)


class NeverEndsEarly:
    """Run that ignores aborts: it ends before one can reach it."""

    def abort(self):
        pass


class EchoModel:
    """Model that returns and counts its inputs, and fails once after `break_`."""

    measured_batches = ((64, 1e-5), (6, 1e-6))
    run_tokens = 0

    def __init__(self, max_batch_tokens, num_threads):
        self.max_batch_tokens, self.num_threads = max_batch_tokens, num_threads
        self.computed = Counter()
        self.fails = False

    def new_run(self):
        return NeverEndsEarly()

    def compute(self, sequences, run):
        time.sleep(0.0005)
        self.computed.update(sequences)
        fails, self.fails = self.fails, False
        if fails:
            raise OSError
        return sequences


class Sums:
    """Observer that counts computed and dropped sequences."""

    def __init__(self):
        self.computed, self.dropped = [], []

    def batch_done(self, model, batch):
        self.computed.append(batch.rows)

    def sequences_dropped(self, model, count):
        self.dropped.append(count)

    def job_refused(self, model, error):
        pass


class SchedulerMachine(RuleBasedStateMachine):
    """State machine that submits, cancels and breaks, and checks the outcome of each job at the end."""

    @initialize(workers=st.integers(1, 3))
    def start(self, workers):
        self.sums, self.has_failed, self.jobs, self.count = Sums(), False, [], 0
        self.scheduler = Scheduler(workers=workers, observer=self.sums, max_queue_s=1e6)
        self.models = [EchoModel(8, 1), EchoModel(32, 2), EchoModel(1, 5)]

    @rule(number=st.integers(0, 2), lengths=GROUPS, timeout_s=st.sampled_from([None, None, 0.0005, 0.005, 10]))
    def submit(self, number, lengths, timeout_s):
        groups = [[self._sequence(length) for length in group] for group in lengths]
        finished = Counter()

        def finish(group, outputs):
            finished[group] += 1
            return outputs

        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            future = self.scheduler.submit(self.models[number], groups, finish, deadline_s=deadline_s)
        except RefusedError:
            return
        self.jobs.append((self.models[number], groups, timeout_s, future, finished))

    def _sequence(self, length):
        self.count += 1
        return str(self.count).ljust(length)

    @rule(number=st.integers(0, 1000))
    def cancel(self, number):
        if self.jobs:
            self.jobs[number % len(self.jobs)][3].cancel()

    @rule(number=st.integers(0, 2))
    def fail(self, number):
        self.models[number].fails = self.has_failed = True

    @rule()
    def wait(self):
        time.sleep(0.002)

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        for job in self.jobs:
            self._check(*job)
        wait_until(lambda: not any(map(self.scheduler.queued_sequences, self.models)), "sequences wait forever")
        self.scheduler.close()

        assert not any(map(self.scheduler.queued_tokens, self.models))
        assert all(set(model.computed.values()) <= {1} for model in self.models)
        total = sum(len(group) for _, groups, *_ in self.jobs for group in groups)
        assert self.has_failed or sum(self.sums.computed) + sum(self.sums.dropped) == total

    def _check(self, model, groups, timeout_s, future, finished):
        try:
            assert future.result(10).results == groups
            assert finished == Counter(range(len(groups)))
            assert all(model.computed[sequence] == 1 for group in groups for sequence in group)
        except CancelledError:
            assert set(finished.values()) <= {1}
        except ExpiredError:
            assert timeout_s is not None
        except ComputeError:
            assert self.has_failed


class TestScheduler(SchedulerMachine.TestCase):
    """Each job ends once, each sequence is computed at most once, and the counts end at zero."""

    settings = settings(max_examples=25, stateful_step_count=30)
