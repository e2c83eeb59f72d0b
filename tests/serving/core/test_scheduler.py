import asyncio
import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import pytest

from serving.core.codec_pool import FutureBridge
from serving.core.errors import (
    ComputeError,
    DeadlineTooShortError,
    ExpiredError,
    TooLargeError,
    UnavailableError,
)
from serving.core.scheduler import Scheduler
from tests.serving.reliability import wait_until


class Echo:
    """Model whose output for a sequence is its sum; it waits while its gate is closed."""

    max_batch_tokens = 40
    num_threads = 1
    run_tokens = 0
    seconds_per_token = 1e-6
    """Speed in the measured batches."""

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.batches = []
        self.aborted = threading.Event()

    @property
    def measured_batches(self):
        return [(tokens, tokens * self.seconds_per_token) for tokens in (1, 40)]

    def new_run(self):
        return SimpleNamespace(abort=lambda: self.abort())

    def compute(self, sequences, run):
        self.entered.release()
        assert self.gate.wait(10)
        self.batches.append(sequences)
        if any(-1 in sequence for sequence in sequences):
            raise RuntimeError("poison")
        if self.aborted.is_set():
            raise RuntimeError("aborted")
        return [sum(sequence) for sequence in sequences]

    def abort(self):
        self.aborted.set()
        self.gate.set()


class Log:
    """Observer that keeps the batches, the errors of refused jobs, and the number of dropped sequences."""

    def __init__(self):
        self.batches, self.refused = [], []
        self.dropped = 0

    def batch_done(self, model, batch):
        self.batches.append(batch)

    def sequences_dropped(self, model, count):
        self.dropped += count

    def job_refused(self, model, error):
        self.refused.append(type(error))


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def model():
    return Echo()


@pytest.fixture
def make_scheduler(log):
    """Function that makes schedulers, which are closed at the end."""
    with ExitStack() as stack:

        def make(**settings):
            scheduler = Scheduler(observer=log, **settings)
            stack.callback(scheduler.close)
            return scheduler

        yield make


@pytest.fixture
def scheduler(make_scheduler):
    """Scheduler with one worker: jobs that are submitted while it is busy stay in the queue."""
    return make_scheduler(workers=1)


def total(_, outputs):
    return sum(outputs)


def occupy(scheduler, model):
    """Keep the worker busy until the gate opens."""
    model.gate.clear()
    future = scheduler.submit(model, [[[7] * 40]], total)
    assert model.entered.acquire(timeout=10)
    return future


def test_batches_form_while_busy(scheduler, model, log):
    """Sequences that wait together are computed in one batch, and each job gets its own results."""
    busy = occupy(scheduler, model)
    futures = [scheduler.submit(model, [[[number]]], total) for number in range(30)]
    model.gate.set()

    assert busy.result(10).results == [280]
    assert [future.result(10).results for future in futures] == [[number] for number in range(30)]
    assert [batch.rows for batch in log.batches] == [1, 30]


def test_refused_job_is_freed(scheduler, model):
    """The sequences of a refused job are freed immediately, without the garbage collector."""

    class Sequence(list):
        pass

    sequences = [Sequence([1] * 40) for _ in range(10)]
    kept = [weakref.ref(item) for item in sequences]
    model.seconds_per_token = 1.0
    gc.disable()
    try:
        with suppress(TooLargeError):
            scheduler.submit(model, [sequences], lambda group, outputs: None)
        del sequences
        assert not any(item() for item in kept)
    finally:
        gc.enable()


def test_unreachable_deadline_is_refused(make_scheduler, model):
    """The estimate counts the work ahead and the job itself; a short job goes before long ones."""
    scheduler = make_scheduler(workers=1, clock=lambda: 0.0)
    model.seconds_per_token = 0.01
    occupy(scheduler, model)
    scheduler.submit(model, [[[1] * 100]], total)

    with pytest.raises(DeadlineTooShortError, match=r"about 2\.4 s are needed, 2\.3 s are left") as caught:
        scheduler.submit(model, [[[1] * 100]], total, deadline_s=2.3)
    assert caught.value.retry_s == pytest.approx(1.4)
    with pytest.raises(DeadlineTooShortError, match=r"2\.9 s are left, less than the needed margin of 40%"):
        scheduler.check(model, 100, 2.9)
    scheduler.check(model, 100, 3.5)
    scheduler.submit(model, [[[1] * 3]], total, deadline_s=0.6)


@pytest.mark.parametrize(
    ("num_threads", "lengths", "shared", "needed"),
    [
        (1, [40], "0.025", "0.4"),
        (4, [40], "0.025", "0.1"),
        (1, [20] * 64, "0.8", "0.8"),
        (1, [4, 12, 16], "0.02", "0.16"),
    ],
)
def test_one_sequence_uses_the_cores_of_one_batch(make_scheduler, model, num_threads, lengths, shared, needed):
    """A sequence uses the cores of one batch, and sequences of several lengths run side by side."""
    model.seconds_per_token, model.num_threads = 0.01, num_threads
    scheduler = make_scheduler(workers=16)
    with pytest.raises(DeadlineTooShortError, match=f"about {shared} s are needed"):
        scheduler.check(model, sum(lengths), time.monotonic())
    with pytest.raises(DeadlineTooShortError, match=f"about {needed} s are needed"):
        scheduler.submit(model, [[[1] * length for length in lengths]], total, deadline_s=time.monotonic())


@pytest.fixture
def timed_model(model, monkeypatch):
    """Model whose clock moves by 10 ms for each sequence of 40 tokens; batches hold one."""
    model.seconds_per_token, model.now_s = 0.00025, 0.0
    compute = model.compute

    def timed(sequences, run):
        model.now_s += sum(map(len, sequences)) * model.seconds_per_token
        return compute(sequences, run)

    monkeypatch.setattr(model, "compute", timed)
    return model


def scored(_, outputs):
    return [None if output is None else output // 40 for output in outputs]


def test_a_best_effort_ends_with_what_it_has(make_scheduler, timed_model, log):
    """Sequences are computed in their order while a batch ends before the deadline, which would refuse other jobs."""
    scheduler = make_scheduler(workers=1, clock=lambda: timed_model.now_s)
    sequences = [[number] * 40 for number in range(10)]
    with pytest.raises(DeadlineTooShortError):
        scheduler.submit(timed_model, [sequences], scored, deadline_s=0.055)
    scheduler.check(timed_model, 400, 0.055, best_effort=True)
    future = scheduler.submit(timed_model, [sequences[:8], sequences[8:]], scored, deadline_s=0.055, best_effort=True)

    wait_until(lambda: not scheduler.queued_sequences(timed_model))
    assert not future.done()
    future.end_early(0.055)
    assert future.result(10).results == [[0, 1, 2, 3, 4, None, None, None], [None, None]]
    assert len(log.batches) == 5

    whole = scheduler.submit(timed_model, [sequences], scored, deadline_s=1.0, best_effort=True)
    assert whole.result(10).results == [[*range(10)]]


@pytest.mark.parametrize("timer_is_late", [False, True])
def test_a_best_effort_may_compute_nothing(make_scheduler, timed_model, timer_is_late):
    """A job that waits until its deadline has no output, also if the worker sees that before anyone ends it."""
    scheduler = make_scheduler(workers=1, clock=lambda: timed_model.now_s)
    busy = occupy(scheduler, timed_model)
    future = scheduler.submit(timed_model, [[[1] * 40]], scored, deadline_s=timed_model.now_s, best_effort=True)
    if not timer_is_late:
        future.end_early(timed_model.now_s)
        assert future.result(0).results == [[None]]
    timed_model.gate.set()

    assert busy.result(10).results == [280]
    assert future.result(10).results == [[None]]


def test_a_late_output_of_a_best_effort_is_dropped(scheduler, model):
    """An output that arrives after the job has ended changes nothing, and an error of its results is its own."""

    def fail(_, outputs):
        raise ComputeError("no output")

    model.gate.clear()
    futures = [scheduler.submit(model, [[[5]]], finish, deadline_s=1e9, best_effort=True) for finish in (total, fail)]
    assert model.entered.acquire(timeout=10)
    futures[1].end_early(0.0)
    with pytest.raises(ComputeError, match="no output"):
        futures[1].result(0)
    model.gate.set()
    assert futures[0].result(10).results == [5]


def test_speed_is_learnt(scheduler, model):
    """Admission follows the measured time of batches."""
    model.seconds_per_token = 10.0
    with pytest.raises(TooLargeError):
        scheduler.check(model, 20)
    model.seconds_per_token = 0.001
    for _ in range(100):
        scheduler.submit(model, [[[1] * 40]], total).result(10)

    assert scheduler.latency_model.seconds_per_token(model) < 0.0005
    scheduler.check(model, 2000)


def test_cancelling_the_first_job_wakes_idle_workers(make_scheduler):
    """Cancelling a job that waits for cores lets idle workers compute the jobs behind it."""
    wide, narrow = Echo(), Echo()
    wide.num_threads = 2
    narrow.gate.clear()
    scheduler = make_scheduler(workers=2)
    scheduler.submit(narrow, [[[1] * 10]], total)
    assert narrow.entered.acquire(timeout=10)
    blocking = scheduler.submit(wide, [[[1] * 20]], total)
    behind = scheduler.submit(narrow, [[[1] * 30]], total)
    wait_until(lambda: scheduler._changed._waiters, "the other worker is not idle")

    assert blocking.cancel()
    assert narrow.entered.acquire(timeout=5), "the second batch waits for the first to end"
    narrow.gate.set()
    assert behind.result(10).results == [30]


def test_free_cores_are_used_at_once(make_scheduler):
    """One worker wakes the next: jobs that arrive together start on all free cores."""
    models = [Echo() for _ in range(4)]
    for each in models:
        each.gate.clear()
    scheduler = make_scheduler(workers=4)
    futures = [scheduler.submit(each, [[[1]]], total) for each in models]

    assert all(each.entered.acquire(timeout=5) for each in models)
    for each in models:
        each.gate.set()
    assert [future.result(10).results for future in futures] == [[1]] * 4


def test_failing_batch(scheduler, model, log, caplog, monkeypatch):
    """A failed batch fails its jobs, whose rest leaves the queue, and is logged; so does a run that cannot start."""
    with monkeypatch.context() as patch:
        patch.setattr(model, "new_run", lambda: 1 // 0)
        with pytest.raises(ComputeError, match="ZeroDivisionError"):
            scheduler.submit(model, [[[1]]], total).result(10)
    poisoned = scheduler.submit(model, [[[-1] * 40]] * 3, total)

    with pytest.raises(ComputeError, match="RuntimeError"):
        poisoned.result(10)
    assert scheduler.submit(model, [[[1]]], total).result(10).results == [1]
    assert "poison" in caplog.text
    assert scheduler.queued_sequences(model) == log.dropped == 0


def test_failing_finish(scheduler, model):
    """A result that cannot be built fails only its own job."""
    occupy(scheduler, model)
    bad = scheduler.submit(model, [[[1]]], lambda group, outputs: 1 // 0)
    good = scheduler.submit(model, [[[1]]], total)
    model.gate.set()

    with pytest.raises(ComputeError, match="ZeroDivisionError"):
        bad.result(10)
    assert good.result(10).results == [1]


def test_high_estimates_are_reset_when_idle(scheduler, model):
    """An idle scheduler resets an estimate that refuses all requests, because no batch can correct it."""
    model.seconds_per_token = 0.001
    for _ in range(200):  # other processes use the machine
        scheduler.latency_model.observe_batch(model, 40, 0.4)

    assert 5000 * scheduler.latency_model.seconds_per_token(model) > 10

    running = occupy(scheduler, model)
    with pytest.raises(TooLargeError):
        scheduler.check(model, 5000)
    model.gate.set()
    running.result(10)
    while scheduler.check_workers() or scheduler._busy:
        time.sleep(0.001)
    scheduler.check(model, 5000)
    scheduler.check(model, 500, deadline_s=time.monotonic() + 1)
    with pytest.raises(TooLargeError):
        scheduler.check(model, 20_000)


@pytest.mark.parametrize("learnt", [0.0005, 0.002])
def test_estimates_stay_if_a_reset_would_admit_nothing(scheduler, model, learnt):
    """A deadline that is too short at any speed does not reset the estimate."""
    model.seconds_per_token = 0.001
    for _ in range(500):
        scheduler.latency_model.observe_batch(model, 40, 40 * learnt)
    before = scheduler.latency_model.seconds_per_token(model)

    with pytest.raises(DeadlineTooShortError):
        scheduler.check(model, 100, time.monotonic() + 0.001)
    assert scheduler.latency_model.seconds_per_token(model) == before == pytest.approx(learnt, rel=0.1)


def test_closing_aborts_running_batches(log, model):
    """Running jobs fail, waiting jobs are cancelled and never start."""
    scheduler = Scheduler(workers=1, observer=log)
    running = occupy(scheduler, model)
    waiting = scheduler.submit(model, [[[1]]], total)

    scheduler.close()
    scheduler.close()
    with pytest.raises(ComputeError, match="did not end in time"):
        running.result(0)
    assert waiting.cancelled()
    assert len(model.batches) == 1


def test_a_worker_that_ends_is_replaced(scheduler, model, monkeypatch):
    """The jobs of a worker that ends fail, and a new worker computes the next ones."""
    monkeypatch.setattr("threading.excepthook", lambda arguments: None)
    with monkeypatch.context() as broken:
        broken.setattr(scheduler, "_fail", lambda batch, reason: 1 // 0)
        lost = scheduler.submit(model, [[[-1]]], total)
        while scheduler._workers[0].thread.is_alive():
            time.sleep(0.005)

    assert "replaced" in scheduler.check_workers()
    with pytest.raises(ComputeError, match="its worker thread ended"):
        lost.result(0)
    assert scheduler.submit(model, [[[1]]], total).result(10).results == [1]
    assert scheduler.check_workers() == ""


@pytest.mark.parametrize("deadline_passes", [False, True])
def test_ended_job_is_freed(scheduler, model, deadline_passes):
    """An ended job frees its arrays and its request, also if a worker is idle."""

    class Sequence(list):
        pass

    class Request:
        def finish(self, group, outputs):
            return sum(outputs)

    sequence, request = Sequence([1, 2]), Request()
    references = [weakref.ref(sequence), weakref.ref(request)]
    gc.disable()
    try:
        busy = occupy(scheduler, model)
        future = scheduler.submit(model, [[sequence]], request.finish, deadline_s=time.monotonic() + 60)
        if deadline_passes:
            scheduler._queue.first().job.deadline_s = 0.0
        model.gate.set()
        wait([busy, future], 10)
        assert isinstance(future.exception(), ExpiredError) is deadline_passes
        model.batches.clear()
        del sequence, request, future
        wait_until(lambda: not any(reference() for reference in references), "an object is kept alive", limit_s=10)
    finally:
        gc.enable()


def test_closing_while_callers_cancel(log, model, monkeypatch):
    """Entries are removed under the lock, and each job is cancelled once."""
    scheduler = Scheduler(workers=1, observer=log, max_queue_s=1000)
    pop_batch, alone = scheduler._queue.pop_batch, []

    def popped():
        alone.append(scheduler._changed._is_owned())
        return pop_batch()

    monkeypatch.setattr(scheduler._queue, "pop_batch", popped)
    busy = occupy(scheduler, model)
    waiting = [scheduler.submit(model, [[[number]]], total) for number in range(1000)]
    with ThreadPoolExecutor(2) as threads:
        giving_up = threads.submit(lambda: [future.cancel() for future in waiting])
        closing = threads.submit(scheduler.close)
        giving_up.result(60)
        closing.result(60)

    assert all(alone)
    assert len(alone) > 1
    assert all(future.cancelled() for future in waiting)
    assert busy.done()


def test_jobs_cancelled_by_close_are_unavailable(log, model):
    """A caller that waits in an event loop gets UnavailableError."""
    scheduler = Scheduler(workers=1, observer=log)
    occupy(scheduler, model)

    async def ask():
        waiting = asyncio.create_task(FutureBridge().wait(scheduler.submit(model, [[[1]]], total)))
        await asyncio.sleep(0)
        await asyncio.to_thread(scheduler.close)
        await waiting

    with pytest.raises(UnavailableError, match="the server ends"):
        asyncio.run(ask())


def test_models_of_several_threads_share_the_cores(make_scheduler):
    """A batch starts when enough cores are free: alone if it needs all, two at a time if each needs half."""
    wide, narrow = Echo(), Echo()
    wide.num_threads = 4
    wide.gate.clear()
    narrow.gate.clear()
    scheduler = make_scheduler(workers=2)
    first = scheduler.submit(wide, [[[1] * 30]], total)
    assert wide.entered.acquire(timeout=10)
    others = [scheduler.submit(narrow, [[[1] * 30]], total) for _ in range(2)]

    assert not narrow.entered.acquire(timeout=0.2)
    wide.gate.set()
    assert narrow.entered.acquire(timeout=10)
    assert narrow.entered.acquire(timeout=10)
    narrow.gate.set()
    assert [future.result(10).results for future in (first, *others)] == [[30], [30], [30]]
