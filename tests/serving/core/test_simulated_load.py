"""Latencies and fractions that the real scheduler gives callers under load, simulated on 1 to 64 cores."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.serving.simulation import SimulatedModel, Simulation

SHORT = 8
"""Tokens of a short query."""
MIN_BULK_RATE = 0.9
MAX_WAIT = 10
"""Maximum wait of a short query during one running batch, as a multiple of its own work."""


def bulk_work(simulation, models, callers):
    """Return the work of the cores for bulk callers: their tokens, divided by the speed of the model."""
    records = simulation.records
    return sum(records[f"bulk {number}"].done_tokens / models[item[0]].speed for number, item in enumerate(callers))


def load(simulation, models, callers, *, is_bulk=False):
    """Draw bulk callers: the index of the model, requests in flight, and rows and length of each request."""
    for number, (model, in_flight, rows, length) in enumerate(callers):
        simulation.bulk(f"bulk {number}", models[model], [length] * rows, in_flight=in_flight, is_bulk=is_bulk)


def most_wait_s(simulation, model):
    own_s = model.seconds(SHORT)
    return MAX_WAIT * own_s + simulation.longest_batch_s


LOADS = {
    "cores": st.sampled_from([1, 2, 3, 8, 64]),
    "callers": st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([1, 2, 8]), st.integers(1, 32), st.integers(100, 250)),
        min_size=1,
        max_size=40,
    ),
    "is_bulk": st.booleans(),
    "timeout_s": st.sampled_from([None, 0.05, 0.25, 1.0]),
}


@settings(max_examples=2, deadline=None)
@given(**LOADS)
@example(cores=1, callers=[(0, 1, 1, 100), (0, 1, 1, 100), (0, 1, 21, 100)], is_bulk=False, timeout_s=None)
@example(cores=1, callers=[(0, 1, 18, 130), (1, 1, 13, 107), (1, 8, 9, 171)], is_bulk=False, timeout_s=0.05)
def test_short_queries_beside_bulk(cores, callers, is_bulk, timeout_s):
    """Short queries wait at most ten times their own work plus a running batch, and bulk keeps its rate."""
    check_short_queries(cores, callers, is_bulk, timeout_s)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(**LOADS)
def test_short_queries_beside_bulk_at_length(cores, callers, is_bulk, timeout_s):
    """The same bounds hold for more mixes of callers."""
    check_short_queries(cores, callers, is_bulk, timeout_s)


def check_short_queries(cores, callers, is_bulk, timeout_s):
    models = [SimulatedModel(), SimulatedModel(max_batch_tokens=1024, speed=2), SimulatedModel(num_threads=2)]
    seconds, alone = 1.0, Simulation(cores)
    load(alone, models, callers, is_bulk=is_bulk)
    alone.run(seconds)
    simulation = Simulation(cores)
    load(simulation, models, callers, is_bulk=is_bulk)
    simulation.stream("query", models[0], SHORT, period_s=0.0271, until_s=seconds - 0.1, timeout_s=timeout_s)
    simulation.run(seconds)

    query = simulation.records["query"]
    # The longest batch of models with two cores may start before it: cores are collected for such batches.
    widest = 2 if any(model == 2 for model, *_ in callers) and cores > 1 else 1
    assert (query.refused, query.late) == (0, 0)
    assert len(query.waits_s) == 34
    assert max(query.waits_s) <= widest * most_wait_s(simulation, models[0])
    least = MIN_BULK_RATE * bulk_work(alone, models, callers) - 2 * 250 * cores
    assert bulk_work(simulation, models, callers) >= least


@pytest.mark.parametrize(
    ("cores", "num_callers", "in_flight", "seconds"),
    [
        (2, 32, 4, 5),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(2, 256, 1, 20), (16, 32, 1, 5), (16, 256, 4, 5)]),
    ],
)
def test_many_raw_callers(cores, num_callers, in_flight, seconds):
    """No bulk caller starves if the queue has no room for all, and short queries are answered in time."""
    simulation, model = Simulation(cores, max_queue_s=2.0), SimulatedModel()
    load(simulation, [model], [(0, in_flight, 16, 250)] * num_callers)
    simulation.stream("query", model, SHORT, period_s=0.1, until_s=seconds - 0.1, timeout_s=0.05)
    simulation.run(seconds)

    query = simulation.records["query"]
    done = [record.done_tokens for name, record in simulation.records.items() if name.startswith("bulk")]

    assert (query.refused, query.late) == (0, 0)
    assert max(query.waits_s) <= most_wait_s(simulation, model)
    assert simulation.utilisation > 0.97
    assert len(done) == num_callers
    assert min(done) >= 0.3 * max(done)


def test_a_flood_of_short_queries():
    """A flood of short queries delays neither those of another caller nor the bulk's fraction."""
    simulation, model = Simulation(2), SimulatedModel()
    for number in range(4):
        simulation.bulk(f"bulk {number}", model, [250] * 16, in_flight=2)
    simulation.bulk("flood", model, [SHORT], in_flight=300)
    simulation.stream("query", model, SHORT, period_s=0.05, until_s=0.4, timeout_s=0.05)
    simulation.run(0.45)

    query = simulation.records["query"]

    assert (query.refused, query.late) == (0, 0)
    assert max(query.waits_s) <= 3 * simulation.longest_batch_s
    assert all(simulation.records[f"bulk {number}"].done_tokens for number in range(4))


def test_own_short_texts_do_not_block_a_long_document():
    """A caller's own short texts do not block its long document."""
    simulation, model = Simulation(2), SimulatedModel()
    simulation.bulk("own", model, [SHORT], in_flight=40)
    simulation.at(0.1, lambda: simulation.ask("own", model, [250] * 40))
    simulation.run(0.8)

    assert 0.1 < max(simulation.records["own"].latencies_s) < 40 * model.seconds(250) / 2 * 8 + 0.2


def test_burst_of_queries_goes_before_a_bulk_job():
    """A thousand simultaneous queries during a bulk job are all computed before more of the job."""
    simulation, model = Simulation(4), SimulatedModel()
    simulation.bulk("bulk", model, [250] * 64, in_flight=8, is_bulk=True)
    for number in range(1000):
        simulation.at(1.0, lambda number=number: simulation.ask(f"user {number % 50}", model, [SHORT], timeout_s=1.0))
    simulation.run(2)

    users = [record for name, record in simulation.records.items() if name.startswith("user")]
    needed_s = 1000 / 32 * model.seconds(256) / 4

    assert sum(len(record.waits_s) for record in users) == 1000
    assert max(max(record.latencies_s) for record in users) < 2 * needed_s + simulation.longest_batch_s


def test_admitted_deadlines_are_met():
    """Nearly all admitted requests meet their deadlines, even under heavy overload."""
    simulation, model = Simulation(2), SimulatedModel()
    for number in range(40):
        for start in range(60):
            simulation.at(
                0.1 * start + 0.0023 * number,
                lambda number=number: simulation.ask(f"user {number}", model, [60] * 16, timeout_s=0.5),
            )
    simulation.run(8)

    late = sum(record.late + sum(s > 0.5 for s in record.latencies_s) for record in simulation.records.values())
    done = sum(len(record.latencies_s) for record in simulation.records.values())
    refused = sum(record.refused for record in simulation.records.values())

    assert refused > 200
    assert late <= 0.02 * done
    assert simulation.busy_s > 0.9 * 2 * 6
