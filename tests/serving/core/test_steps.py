import asyncio
import time

import pytest

from serving.core import steps
from serving.core.steps import RefusalPacer


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    monkeypatch.setattr(steps, "RATE", 10.0)
    monkeypatch.setattr(steps, "MAX_DELAY_S", 0.4)


def seconds(*calls):
    """Return the seconds that each of several simultaneous refusals takes: (caller, seconds until its deadline)."""

    async def one(pacer, caller, remaining_s):
        started = time.monotonic()
        await pacer.wait(caller, remaining_s)
        return time.monotonic() - started

    async def run():
        pacer = RefusalPacer()
        return await asyncio.gather(*(one(pacer, *call) for call in calls))

    return asyncio.run(run())


def test_few_refusals_are_sent_immediately():
    """A few refusals are sent immediately, also to the same caller."""
    assert max(seconds(*[("a", None)] * 10)) < 0.08


def test_callers_that_ask_too_often_wait():
    """Refusals to the same caller are spread over a limited time, and first refusals to others are sent immediately."""
    times = seconds(*[("a", None)] * 20, ("b", None), ("b", None))

    assert max(times[:10]) < 0.08
    assert times[10:13] == pytest.approx([0.1, 0.2, 0.3], abs=0.06)
    assert times[18] == pytest.approx(0.4, abs=0.08)
    assert times[20] < 0.08
    assert times[21] == pytest.approx(0.4, abs=0.08)


def test_a_deadline_ends_the_wait():
    """Delayed refusals are sent before the deadline."""
    times = seconds(*[("a", None)] * 18, ("a", 0.2), ("a", 0.01))

    assert times[18] == pytest.approx(0.2 - steps.MARGIN_S, abs=0.06)
    assert times[19] < 0.08


def test_number_of_delayed_refusals_is_bounded(monkeypatch):
    """The number of delayed refusals is bounded."""
    monkeypatch.setattr(steps, "MAX_DELAYED", 1)

    assert sum(took > 0.08 for took in seconds(*[("a", None)] * 19)) == 1


def test_callers_are_forgotten():
    """Callers without recent refusals are forgotten."""

    async def run():
        pacer = RefusalPacer()
        for number in range(100):
            await pacer.wait(f"caller {number}", None)
        await asyncio.sleep(0.45)
        await pacer.wait("last", None)
        return len(pacer._last_s)

    assert asyncio.run(run()) == 1
