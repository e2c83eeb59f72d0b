"""Tests of faults of the fake server that begin after several calls."""

from __future__ import annotations

import time
from typing import Any

import pytest

from bertline import Client, errors
from bertline.testing import FakeServer


def outcomes(client: Client, count: int, method: str = "regress") -> list[str]:
    """Return `ok` or the error's name for each of several calls."""
    found = []
    for _ in range(count):
        try:
            getattr(client, method)(["text"])
            found.append("ok")
        except errors.BertlineError as error:
            found.append(type(error).__name__)
    return found


def test_calls_before_a_fault_are_answered(client: Client, server: FakeServer) -> None:
    """`after` answers this many calls, of the method if one is named, before `times` calls fail."""
    server.fail("INTERNAL", method="Regress", after=2, times=3)

    assert outcomes(client, 5, "embed") == ["ok"] * 5
    assert outcomes(client, 6) == ["ok", "ok", "ServerError", "ServerError", "ServerError", "ok"]


def test_faults_one_after_the_other(client: Client, server: FakeServer) -> None:
    """Each fault counts from the end of the one before."""
    for _ in range(2):
        server.fail("INTERNAL", after=2)

    assert outcomes(client, 7) == ["ok", "ok", "ServerError", "ok", "ok", "ServerError", "ok"]


def test_delays_and_failures_count_apart(client: Client, server: FakeServer) -> None:
    """A delay does not count as a call before a failure."""
    server.delay(0.3, after=1, times=1)
    server.fail("INTERNAL", after=1)
    client.regress(["text"])
    start = time.monotonic()

    assert outcomes(client, 2) == ["ServerError", "ok"]
    assert time.monotonic() - start >= 0.3


def test_a_connection_can_be_lost_later(server: FakeServer) -> None:
    """The client sends calls of a lost connection again over another one."""
    server.drop(after=2)
    with Client(server.target) as client:
        for _ in range(4):
            client.regress(["text"])

    peers = [call.peer for call in server.calls]
    assert len(peers) == 5
    assert peers[:3] == [peers[0]] * 3
    assert peers[3:] == [peers[3]] * 2 != peers[:2]


def test_overload_can_come_later(server: FakeServer) -> None:
    """An overload can begin after several calls."""
    server.overload(after=1, times=None, pushback_ms=-1)
    with Client(server.target) as client:
        assert outcomes(client, 3) == ["ok", "Overloaded", "Overloaded"]


@pytest.mark.parametrize("fault", ["fail", "overload", "drop"])
def test_a_negative_number_of_calls_is_refused(server: FakeServer, fault: Any) -> None:
    """The error names the negative value."""
    with pytest.raises(ValueError, match="`after` must not be negative: `-1`"):
        getattr(server, fault)(after=-1)
