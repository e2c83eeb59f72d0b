import gc
import random
import threading
import time
import weakref
from concurrent.futures import CancelledError, wait

import pytest

from serving.scheduler import ComputeError, ExpiredError, QueueFullError, Scheduler


class Echo:
    """A model whose output for a sequence is its sum; waits while its gate is shut."""

    max_batch_tokens = 40
    num_threads = 1

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.batches = []
        self.during = lambda sequences: None

    def compute(self, sequences):
        self.entered.release()
        assert self.gate.wait(10)
        self.during(sequences)
        self.batches.append(sequences)
        if any(-1 in sequence for sequence in sequences):
            raise RuntimeError("poison")
        return [sum(sequence) for sequence in sequences]


class Log:
    """What the scheduler told."""

    def __init__(self):
        self.batches = []
        self.dropped = 0

    def batch_done(self, model, batch):
        self.batches.append(batch)

    def sequences_dropped(self, model, count):
        self.dropped += count


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def model():
    return Echo()


@pytest.fixture
def scheduler(log):
    """One worker, so that what is submitted while it is busy stays in the queue."""
    scheduler = Scheduler(workers=1, max_queue_tokens=100, observer=log)
    yield scheduler
    scheduler.close()


def total(_, outputs):
    return sum(outputs)


def occupy(scheduler, model):
    """Keep the worker busy until the gate opens."""
    model.gate.clear()
    future = scheduler.submit(model, [[[7] * 40]], total)
    assert model.entered.acquire(timeout=10)
    return future


def test_groups(scheduler, model):
    """Each group becomes one result, in order."""
    future = scheduler.submit(model, [[[1, 2], [3]], [[4]]], lambda group, outputs: (group, outputs))

    assert future.result(10).results == [(0, [3, 3]), (1, [4])]


def test_nothing(scheduler, model):
    """No groups, no results, at once."""
    assert scheduler.submit(model, [], total).result(0).results == []


def test_batches_form_while_busy(scheduler, model, log):
    """What waits together is computed together, each job with its own result."""
    busy = occupy(scheduler, model)
    futures = [scheduler.submit(model, [[[number]]], total) for number in range(30)]
    model.gate.set()

    assert busy.result(10).results == [280]
    assert [future.result(10).results for future in futures] == [[number] for number in range(30)]
    assert [batch.rows for batch in log.batches] == [1, 30]


def test_many_threads(log, model):
    """Jobs of any shape, submitted from many threads to several workers, get what is theirs."""
    scheduler = Scheduler(workers=4, max_queue_tokens=10**9, observer=log)
    jobs, random_ = [], random.Random(0)
    models = [model, Echo()]

    def submit(seed):
        random_ = random.Random(seed)
        for _ in range(50):
            groups = [
                [[random_.randrange(100) for _ in range(random_.randint(1, 30))] for _ in range(random_.randint(1, 3))]
                for _ in range(random_.randint(1, 5))
            ]
            jobs.append((groups, scheduler.submit(random_.choice(models), groups, total)))

    threads = [threading.Thread(target=submit, args=[random_.random()]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for groups, future in jobs:
        assert future.result(10).results == [sum(map(sum, group)) for group in groups]
    scheduler.close()

    assert sum(batch.num_tokens for batch in log.batches) == sum(
        len(sequence) for groups, _ in jobs for group in groups for sequence in group
    )


def test_full_queue(scheduler, model):
    """What does not fit is refused at once; what waits is not harmed, and its tokens are counted."""
    busy = occupy(scheduler, model)
    waiting = scheduler.submit(model, [[[1] * 60]], total)

    with pytest.raises(QueueFullError, match="queue is full") as caught:
        scheduler.submit(model, [[[1] * 41]], total)
    assert not caught.value.too_large
    with pytest.raises(QueueFullError, match="101 tokens, the queue takes 100"):
        scheduler.submit(model, [[[1] * 101]], total)
    assert scheduler.queued_tokens(model) == 60
    model.gate.set()
    wait([busy, waiting], 10)
    assert waiting.result().results == [60]
    assert scheduler.queued_tokens(model) == 0


def test_cancelled_in_queue(scheduler, model, log):
    """A cancelled job leaves the queue at once, is never computed, and its neighbours are."""
    occupy(scheduler, model)
    first, second, third = (scheduler.submit(model, [[[number] * 5]] * 2, total) for number in (1, 2, 3))

    assert second.cancel()
    assert scheduler.queued_tokens(model) == 20
    model.gate.set()
    assert (first.result(10).results, third.result(10).results) == ([5, 5], [15, 15])
    assert [2] * 5 not in [sequence for batch in model.batches for sequence in batch]
    assert log.dropped == 2


def test_cancelled_in_batch(scheduler, model):
    """Cancelling a job while its batch is being computed does not harm the others in it."""
    occupy(scheduler, model)
    first, second, third = (scheduler.submit(model, [[[number] * 5]], total) for number in (1, 2, 3))
    model.during = lambda sequences: len(sequences) == 3 and second.cancel()
    model.gate.set()

    assert (first.result(10).results, third.result(10).results) == ([5], [15])
    assert second.cancelled()
    assert [len(batch) for batch in model.batches] == [1, 3]


def test_expired(scheduler, model, log):
    """A job whose deadline has passed fails without being computed; its neighbours are."""
    occupy(scheduler, model)
    late = scheduler.submit(model, [[[1] * 5]] * 3, total, deadline_s=time.monotonic() - 1)
    timely = scheduler.submit(model, [[[2] * 5]], total, deadline_s=time.monotonic() + 60)
    model.gate.set()

    with pytest.raises(ExpiredError):
        late.result(10)
    assert timely.result(10).results == [10]
    assert [1] * 5 not in [sequence for batch in model.batches for sequence in batch]
    assert log.dropped == 3


def test_failing_batch(scheduler, model, caplog):
    """A batch that fails fails its jobs, is logged, and the worker goes on."""
    poisoned = scheduler.submit(model, [[[-1]]], total)

    with pytest.raises(ComputeError, match="RuntimeError"):
        poisoned.result(10)
    assert scheduler.submit(model, [[[1]]], total).result(10).results == [1]
    assert "poison" in caplog.text


def test_failing_finish(scheduler, model):
    """A result that cannot be made fails that job alone."""
    occupy(scheduler, model)
    bad = scheduler.submit(model, [[[1]]], lambda group, outputs: 1 // 0)
    good = scheduler.submit(model, [[[1]]], total)
    model.gate.set()

    with pytest.raises(ComputeError, match="ZeroDivisionError"):
        bad.result(10)
    assert good.result(10).results == [1]


def test_no_starvation(scheduler, model):
    """A long sequence among a stream of short ones is computed next once it is the oldest."""
    occupy(scheduler, model)
    scheduler.submit(model, [[[1]]], total)
    long = scheduler.submit(model, [[[1] * 30]], total)
    for _ in range(50):
        scheduler.submit(model, [[[1]]], total)
    model.gate.set()

    assert long.result(10).results == [30]
    assert [1] * 30 in [sequence for batch in model.batches[:3] for sequence in batch]


def test_finished_job_is_freed(scheduler, model):
    """Nothing keeps the arrays of a job once its future is gone."""

    class Sequence(list):
        pass

    sequence = Sequence([1, 2])
    reference = weakref.ref(sequence)
    gc.disable()
    try:
        assert scheduler.submit(model, [[sequence]], total).result(10).results == [3]
        model.batches.clear()
        del sequence
        assert scheduler.submit(model, [[[1]]], total).result(10).results == [
            1
        ]  # the worker has let go of the batch before
        assert reference() is None
    finally:
        gc.enable()


def test_close(log, model):
    """Closing finishes the batch under way and cancels what waits."""
    scheduler = Scheduler(workers=1, max_queue_tokens=100, observer=log)
    busy = occupy(scheduler, model)
    waiting = scheduler.submit(model, [[[1]], [[2]]], total)
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    model.gate.set()
    closing.join(10)

    assert busy.done()
    with pytest.raises(CancelledError):
        waiting.result(0)


def test_models_of_several_threads_share_the_cores(log):
    """A batch starts when there are cores for it: none beside one that takes all, two that take half each."""
    wide, narrow = Echo(), Echo()
    wide.num_threads = 4
    wide.gate.clear()
    narrow.gate.clear()
    scheduler = Scheduler(workers=2, max_queue_tokens=1000, observer=log)
    try:
        first = scheduler.submit(wide, [[[1] * 30]], total)
        assert wide.entered.acquire(timeout=10)
        others = [scheduler.submit(narrow, [[[1] * 30]], total) for _ in range(2)]
        assert not narrow.entered.acquire(timeout=0.2)
        wide.gate.set()
        assert narrow.entered.acquire(timeout=10)
        assert narrow.entered.acquire(timeout=10)
        narrow.gate.set()
        assert [future.result(10).results for future in (first, *others)] == [[30], [30], [30]]
    finally:
        scheduler.close()
