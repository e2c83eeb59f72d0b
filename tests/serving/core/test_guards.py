import asyncio

import pytest

from serving.core import guards
from serving.core.calls import Call
from serving.core.errors import QueueFullError
from serving.core.guards import Guards, RefusalPacer
from serving.core.metrics import Metrics


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    monkeypatch.setattr(guards, "RATE", 10.0)
    monkeypatch.setattr(guards, "MAX_DELAY_S", 0.4)


def delays(*calls):
    """Return the delays of several simultaneous refusals: (caller, seconds until its deadline)."""
    pacer = RefusalPacer()
    return [max(0.0, pacer.delay_s(*call, 5.0)) for call in calls]


def test_callers_that_ask_too_often_wait():
    """Refusals to the same caller are spread over a limited time; few of them, and first ones, are not delayed."""
    found = delays(*[("a", None)] * 20, ("b", None), ("b", None))

    assert found == pytest.approx([*[0] * 10, 0.1, 0.2, 0.3, *[0.4] * 7, 0, 0.4])


def test_a_deadline_ends_the_wait():
    """Delayed refusals are sent before the deadline."""
    found = delays(*[("a", None)] * 18, ("a", 0.2), ("a", 0.01))

    assert found[18:] == pytest.approx([0.2 - guards.MARGIN_S, 0])


def test_number_of_delayed_refusals_is_bounded(monkeypatch):
    """Refusals wait, and those beyond a number are sent immediately."""
    monkeypatch.setattr(guards, "MAX_DELAYED", 1)
    monkeypatch.setattr(guards, "MAX_DELAY_S", 60)

    async def run():
        shared = Guards(Metrics(), None, open_health=False, max_per_client=None)
        tasks = [asyncio.create_task(shared.pace(Call(""), QueueFullError(""))) for _ in range(19)]
        await asyncio.sleep(0.01)
        waiting = [task for task in tasks if task.cancel()]
        await asyncio.gather(*tasks, return_exceptions=True)
        return len(waiting)

    assert asyncio.run(run()) == 1


def test_callers_are_forgotten():
    """Callers without recent refusals are forgotten."""
    pacer = RefusalPacer()
    for number in range(100):
        pacer.delay_s(f"caller {number}", None, 5.0)
    pacer.delay_s("last", None, 5.5)

    assert len(pacer._last_s) == 1
