"""Fair order: fractions of callers, of short jobs and of the oldest job, and the wait estimate of admission."""

import itertools
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.fair_order import OLD_BURST_S, OLD_RATIO, SHORT_RATIO, FairOrder
from serving.core.job import Job, Origin

SECONDS_PER_TOKEN = 0.001


class Model:
    """Model that computes one token at a time by default, so that no job fits into a batch."""

    def __init__(self, max_batch_tokens=1):
        self.max_batch_tokens = max_batch_tokens


SMALLEST = Model()


def add(order, length, caller=None, *, count=1, is_bulk=False, deadline_s=None, model=SMALLEST):
    """Add a job of `count` sequences."""
    job = Job(
        model,
        [[range(length)] for _ in range(count)],
        lambda group, outputs: None,
        deadline_s=deadline_s,
        seconds_per_token=SECONDS_PER_TOKEN,
        origin=Origin(caller, is_bulk),
    )
    for entry in job.entries:
        entry.is_waiting = True
    order.add(job)
    return job


def take(order):
    """Compute one sequence of the next job."""
    next_job = order.next_job()
    entry = next_job.job.first_waiting()
    order.charge(next_job, [entry])
    drop(order, entry)
    return next_job.job


def drop(order, entry):
    entry.is_waiting = False
    order.remove([entry])


def seconds_by_caller(order, num_batches):
    found = defaultdict(float)
    for _ in range(num_batches):
        job = take(order)
        found[job.origin.caller] += len(job.entries[0].sequence) * SECONDS_PER_TOKEN
    return found


def test_jobs_of_a_batch_keep_their_order():
    """Jobs of a caller that fit into one batch go in order of arrival, unless one is much shorter."""
    order, model = FairOrder(), Model(max_batch_tokens=100)
    jobs = [add(order, length, "own", model=model) for length in (90, 20, 60, 30)]

    assert [take(order) for _ in range(2)] == jobs[:2]

    query = add(order, 3, "own", model=model)

    assert [take(order) for _ in range(3)] == [query, *jobs[2:]]


def test_nearest_deadline_first():
    """Jobs of similar size go in the order of their deadlines; jobs without one go last."""
    order = FairOrder()
    late, never, soon = (add(order, 20, deadline_s=deadline) for deadline in (9.0, None, 3.0))

    assert [take(order) for _ in range(3)] == [soon, late, never]


@pytest.mark.parametrize("lengths", [(20, 20), (20, 60), (25, 100)])
@pytest.mark.parametrize("num_callers", [2, 7])
def test_callers_share_the_time(lengths, num_callers):
    """Callers get equal core time, for any number and size of jobs."""
    order = FairOrder()
    for number in range(num_callers):
        for _ in range(100 * (1 + number % 3)):
            add(order, lengths[number % 2], number, count=10)
    found = seconds_by_caller(order, 1000)

    assert len(found) == num_callers
    assert max(found.values()) - min(found.values()) <= OLD_RATIO * sum(found.values()) + 0.2


def test_a_caller_that_was_away_has_no_credit():
    """A caller that returns gets its fraction from then on, and nothing for the time before."""
    order = FairOrder()
    add(order, 20, "busy", count=2000)
    seconds_by_caller(order, 500)
    add(order, 20, "back", count=2000)

    found = seconds_by_caller(order, 200)

    assert found["back"] <= found["busy"] * (1 + OLD_RATIO) + 0.1


def test_a_caller_with_more_than_its_fraction_is_remembered():
    """Sending jobs one after another gives no more core time than sending all together."""
    order = FairOrder()
    add(order, 20, "all", count=2000)
    found = defaultdict(float)
    waiting = None
    for _ in range(400):
        if waiting is None or not waiting.num_waiting:
            waiting = add(order, 60, "single")
        job = take(order)
        found[job.origin.caller] += len(job.entries[0].sequence) * SECONDS_PER_TOKEN

    assert found["single"] <= found["all"] * 1.1


def test_short_jobs_go_first_for_half_of_the_time_only():
    """A flood of short jobs leaves half of the time to the caller who is next."""
    order = FairOrder()
    for number in range(50):
        add(order, 100, f"bulk {number}", count=20)
    for _ in range(2500):
        add(order, 10, "flood")
    found = seconds_by_caller(order, 2000)

    assert found["flood"] / sum(found.values()) == pytest.approx(SHORT_RATIO, abs=0.05)


def test_bulk_waits_for_interactive_jobs():
    """Bulk jobs get all idle time, but with interactive jobs only the fraction of the oldest job."""
    order = FairOrder()
    add(order, 20, "job", count=10_000, is_bulk=True)

    assert seconds_by_caller(order, 10) == {"job": pytest.approx(0.2)}
    add(order, 20, "other", count=10_000)

    found = seconds_by_caller(order, 2000)
    assert found["job"] / sum(found.values()) == pytest.approx(OLD_RATIO, abs=0.02)


def test_the_oldest_job_does_not_starve():
    """An endless flood of short jobs from new callers does not block the oldest job."""
    order = FairOrder()
    oldest = add(order, 100, "old", count=10)
    spent_s = 0.0
    for number in itertools.count():
        for _ in range(3):
            add(order, 5, f"new {number}")
        spent_s += len(take(order).entries[0].sequence) * SECONDS_PER_TOKEN
        if not oldest.num_waiting:
            break

    assert spent_s <= (oldest.work_s + OLD_BURST_S) / OLD_RATIO + 0.2


@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.integers(0, 4), st.booleans(), st.integers(1, 4), st.integers(0, 3)),
        max_size=40,
    )
)
def test_each_sequence_is_computed_or_dropped_once(jobs):
    """Each sequence is computed once or dropped, and the counts end at zero."""
    order, added, taken = FairOrder(), 0, 0
    for length, caller, is_bulk, count, to_take in jobs:
        job = add(order, length, caller, count=count, is_bulk=is_bulk)
        added += count
        if length % 5 == 0:
            drop(order, job.entries[-1])
            taken += 1
        for _ in range(to_take):
            if order.next_job():
                take(order)
                taken += 1
    while order.next_job():
        take(order)
        taken += 1

    assert taken == added
    assert order.estimate_wait(Origin("new"), 1.0, 0.0).work_ahead_s == 0
    assert not order._keys
    assert not order._sizes
    assert not any(turns.callers or turns.waiting.work_s for turns in order._classes)


def test_wait_estimate():
    """A new job waits for its caller's jobs and for an equal amount of each other caller's, but never for much longer
    ones while short jobs have their fraction."""
    order = FairOrder()
    assert order.estimate_wait(Origin("a"), 0.1, 0.0).work_ahead_s == 0
    add(order, 100, "a", count=10)
    add(order, 100, "b", count=2)

    assert order.estimate_wait(Origin("a"), 1.0, 0.0).work_ahead_s == pytest.approx(1.2)
    assert order.estimate_wait(Origin("b"), 1.0, 0.0).work_ahead_s == pytest.approx(1.2)
    assert order.estimate_wait(Origin("c"), 0.15, 0.0).work_ahead_s == pytest.approx(0.3)
    assert order.estimate_wait(Origin("c"), 0.01, 0.0).work_ahead_s == 0
    assert order.estimate_wait(Origin("c", is_bulk=True), 0.4, 0.0).work_ahead_s == pytest.approx(1.2)
    add(order, 100, "d", count=5, is_bulk=True)
    assert order.estimate_wait(Origin("c"), 0.15, 0.0).work_ahead_s == pytest.approx(0.3)


def test_only_callers_with_more_core_time_leave_a_reserve():
    """Only a caller with more core time than a waiting one must leave a reserve."""
    order = FairOrder()
    add(order, 100, "a", count=2)
    take(order)
    assert not order.estimate_wait(Origin("a"), 1.0, 0.0).others_served_less
    add(order, 100, "b", count=2)

    assert order.estimate_wait(Origin("a"), 1.0, 0.0).others_served_less
    assert not order.estimate_wait(Origin("b"), 1.0, 0.0).others_served_less


def test_refused_callers_come_first():
    """A refused caller counts as waiting until it is admitted or stops trying."""
    order = FairOrder()
    add(order, 100, "a", count=9)
    order.refuse(Origin("b"), 0.0)
    for _ in range(3):
        take(order)
    order.refuse(Origin("c"), 0.5)

    assert order.estimate_wait(Origin("a"), 1.0, 1.0).others_served_less
    assert order.estimate_wait(Origin("c"), 1.0, 1.0).others_served_less
    assert not order.estimate_wait(Origin("b"), 1.0, 1.0).others_served_less
    assert not order.estimate_wait(Origin("c"), 1.0, 2.1).others_served_less
    assert not order.estimate_wait(Origin("a"), 1.0, 2.6).others_served_less


def test_refused_callers_are_forgotten():
    """Refusals are forgotten even while another caller tries again and again."""
    order = FairOrder()
    add(order, 100, "a", count=9)
    for number in range(1000):
        order.refuse(Origin("again"), number / 10)
        order.refuse(Origin(number), number / 10)

    assert all(len(found) < 50 for found in (order._classes[0]._refusals, order._classes[0]._last_refused))


def test_bulk_callers_are_forgotten():
    """Bulk callers are forgotten even while interactive jobs always wait."""
    order = FairOrder()
    for number in range(500):
        add(order, 10, "interactive")
        add(order, 10, number, is_bulk=True)
        take(order)
        take(order)
    while order.next_job():
        take(order)

    assert order._classes[1].callers == {}
    assert order._classes[0]._large == order._classes[1]._large == set()
    assert order._classes[1]._heap == []


@pytest.mark.parametrize("num_callers", [10, 1000])
def test_wait_estimates_with_many_callers(num_callers):
    """A sample of the callers represents all of them."""
    order = FairOrder()
    for number in range(num_callers):
        add(order, 100 if number % 7 else 300, number, count=2)
    whole_s = sum(0.2 if number % 7 else 0.6 for number in range(num_callers))

    found = order.estimate_wait(Origin("new"), 0.15, 0.0)

    assert found.work_ahead_s == pytest.approx(0.15 * num_callers, rel=0.1)
    assert order.estimate_wait(Origin("new"), 100.0, 0.0).work_ahead_s == pytest.approx(whole_s, rel=0.1)


def test_wait_estimates_include_large_callers():
    """Callers with much work count at any position, on average and nearly each time."""
    for place in (0, 1, 2, 300, 599):
        order = FairOrder()
        for number in range(600):
            add(order, 10_000 if number == place else 1, number)

        found = [order.estimate_wait(Origin("new"), 10.0, 0.0).work_ahead_s for _ in range(6)]
        assert all(seconds == pytest.approx(10.6, abs=0.3) for seconds in found)
