"""What admission believes of the speed of models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.forecast import Forecast, Line


class Model:
    """One that takes 1 ms a run and 0.1 ms a token."""

    max_batch_tokens = 100
    measured = ((6, 0.0016), (64, 0.0074))


def run(forecast, model, num_tokens, times, slowness=1.0):
    for _ in range(times):
        forecast.batch_done(model, num_tokens, slowness * (0.001 + 0.0001 * num_tokens))


def test_small_batches_do_not_tell_what_full_ones_cost():
    """After many calls of a few tokens, each as long as the run itself, a large request is not thought to take as much
    a token."""
    forecast, model = Forecast(), Model()
    before = forecast.seconds_per_token(model)

    run(forecast, model, 3, 1000)

    assert before == pytest.approx(0.00011)
    assert forecast.seconds_per_token(model) == pytest.approx(0.00011)


def test_a_machine_that_is_slower_than_at_the_start_is_noticed():
    """Others may have come to use its cores."""
    forecast, model = Forecast(), Model()

    run(forecast, model, 100, 300, slowness=3)

    assert forecast.seconds_per_token(model) == pytest.approx(0.00033, rel=0.05)
    run(forecast, model, 100, 300)
    assert forecast.seconds_per_token(model) == pytest.approx(0.00011, rel=0.05)


@given(st.lists(st.tuples(st.integers(1, 600), st.floats(1e-6, 10)), min_size=1, max_size=40), st.integers(1, 600))
def test_forecasts_are_never_absurd(seen, wanted):
    """Whatever was seen, a batch takes time, and a longer one no less."""
    line = Line([(6, 0.001), (1024, 0.1)])
    for num_tokens, seconds in seen:
        line.add(num_tokens, seconds)

    assert line.seconds(wanted) > 0
    assert line.seconds(wanted + 1) >= line.seconds(wanted)


def test_one_batch_that_took_very_long_changes_little():
    """A batch that took thousands of times as long, as after it a huge reply was made, does not have others refused."""
    forecast, model = Forecast(), Model()
    before = forecast.seconds_per_token(model)
    for number in range(100):
        core_s = 1000.0 if number == 50 else before * model.max_batch_tokens
        forecast.batch_done(model, model.max_batch_tokens, core_s)

    assert forecast.seconds_per_token(model) < 1.3 * before
