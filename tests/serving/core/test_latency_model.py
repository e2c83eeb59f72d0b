"""Latency model: estimates of the speed of models and of the tokens of requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.latency_model import LatencyModel, LinearFit


class Model:
    """Model that takes 1 ms a run and 0.1 ms a token."""

    max_batch_tokens = 100
    measured_batches = ((6, 0.0016), (64, 0.0074))


def run(latency, model, num_tokens, times, slowness=1.0):
    for _ in range(times):
        latency.observe_batch(model, num_tokens, slowness * (0.001 + 0.0001 * num_tokens))


def test_small_batches_do_not_change_the_estimate_of_full_ones():
    """Many calls of a few tokens do not raise the estimated time a token of large requests."""
    latency, model = LatencyModel(), Model()
    before = latency.seconds_per_token(model)

    run(latency, model, 3, 1000)

    assert before == pytest.approx(0.00011)
    assert latency.seconds_per_token(model) == pytest.approx(0.00011)


def test_a_slower_machine_is_noticed():
    """The estimate follows when other processes use the cores, and when they stop."""
    latency, model = LatencyModel(), Model()

    run(latency, model, 100, 300, slowness=3)

    assert latency.seconds_per_token(model) == pytest.approx(0.00033, rel=0.05)
    run(latency, model, 100, 300)
    assert latency.seconds_per_token(model) == pytest.approx(0.00011, rel=0.05)


def test_sequences_that_are_longer_than_the_cap_are_full_batches():
    """A sequence longer than the cap is a full batch, so its tokens do not each cost a run."""
    latency, model = LatencyModel(), Model()
    model.max_batch_tokens = 1

    assert latency.seconds_per_token(model) < 0.0002  # from the longest measured batch
    run(latency, model, 50, 300)
    assert latency.seconds_per_token(model) == pytest.approx(0.006 / 50, rel=0.05)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        (((6, 0.0016), (64, 0.0074)), 10),
        (((6, 0.001), (1024, 0.001)), float("inf")),  # a GPU: small and large batches take the same time
        (((6, 0.0001), (1024, 0.1)), 0),  # long sequences cost more per token
    ],
)
def test_fixed_time_of_a_run_in_tokens(points, expected):
    """The fixed time of a run is that of so many tokens."""
    assert LinearFit(points).run_tokens == pytest.approx(expected)


@given(st.lists(st.tuples(st.integers(1, 600), st.floats(1e-6, 10)), min_size=1, max_size=40), st.integers(1, 600))
def test_estimates_are_positive_and_increasing(seen, wanted):
    """After any observations, a batch takes time, and a longer one at least as much."""
    line = LinearFit([(6, 0.001), (1024, 0.1)])
    for num_tokens, seconds in seen:
        line.add(num_tokens, seconds)

    assert line.seconds(wanted) > 0
    assert line.seconds(wanted + 1) >= line.seconds(wanted)


def test_tiny_requests_hardly_count_for_large_ones():
    """Requests of a few letters hardly change the estimated tokens a byte of prose."""
    latency, model = LatencyModel(), Model()
    latency.observe_request(model, num_bytes=3, num_inputs=1, num_tokens=3)

    assert latency.estimate_tokens(model, num_bytes=20_000, num_inputs=1) < 5000
    latency.observe_request(model, num_bytes=20_000, num_inputs=10, num_tokens=5000)
    for _ in range(50):
        latency.observe_request(model, num_bytes=5, num_inputs=1, num_tokens=6)
    assert latency.estimate_tokens(model, num_bytes=20_000, num_inputs=10) == pytest.approx(5000, rel=0.05)


def test_token_estimate_of_similar_requests():
    """The estimate follows similar requests, also very short ones, and starts at the minimum."""
    latency, model = LatencyModel(), Model()
    assert latency.estimate_tokens(model, num_bytes=2000, num_inputs=100) == 300
    for _ in range(20):
        latency.observe_request(model, num_bytes=200, num_inputs=10, num_tokens=50)

    assert latency.estimate_tokens(model, num_bytes=2000, num_inputs=100) == pytest.approx(500, abs=1)


def test_one_slow_batch_changes_little():
    """One batch that takes thousands of times as long does not make the server refuse requests."""
    latency, model = LatencyModel(), Model()
    before = latency.seconds_per_token(model)
    for number in range(100):
        core_s = 1000.0 if number == 50 else before * model.max_batch_tokens
        latency.observe_batch(model, model.max_batch_tokens, core_s)

    assert latency.seconds_per_token(model) < 1.3 * before
