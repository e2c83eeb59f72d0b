"""Several servers behind one name, and retries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bertline import Client
from bertline.errors import ConnectionFailed, Overloaded
from bertline.testing import FakeServer
from serving.core.errors import QueueFullError
from serving.core.scheduler import Scheduler
from tests.clients.command import Embed, Run, both_clients
from tests.serving.conftest import serve
from tests.serving.models import write_model

DRAINING = ("UNAVAILABLE", "the server is draining")


@pytest.fixture
def replicas() -> Iterator[tuple[FakeServer, FakeServer]]:
    with FakeServer() as first, FakeServer() as second:
        yield first, second


def target_of(replicas: tuple[FakeServer, FakeServer]) -> str:
    """Return a target that names both servers."""
    return "ipv4:" + ",".join(server.target for server in replicas)


def embed_until_both_got_calls(client: Client, replicas: tuple[FakeServer, FakeServer]) -> None:
    """Embed until both servers got a call: they connect one after the other."""
    for server in replicas:
        server.calls.clear()
    end = time.monotonic() + 60
    while not all(server.calls for server in replicas):
        client.embed(["text"])
        assert time.monotonic() < end


def embed_until_one_gets_no_calls(client: Client, replica: FakeServer) -> None:
    """Embed until the replica gets no more calls: the client learns of its health with a delay."""
    end = time.monotonic() + 60
    while True:
        replica.calls.clear()
        for _ in range(4):
            client.embed(["text"])
        if not replica.calls:
            return
        assert time.monotonic() < end


def test_all_replicas_get_requests(replicas: tuple[FakeServer, FakeServer]) -> None:
    """A client divides its requests among the servers of its target."""
    with Client(target_of(replicas)) as client:
        embed_until_both_got_calls(client, replicas)
        before = [len(server.calls) for server in replicas]
        for _ in range(10):
            client.embed(["text"])

    assert [len(server.calls) - count for server, count in zip(replicas, before, strict=True)] == [5, 5]


@pytest.mark.slow
def test_a_draining_replica_costs_no_call(replicas: tuple[FakeServer, FakeServer]) -> None:
    """Another server answers each request that a draining one refuses, also a large one."""
    with Client(target_of(replicas)) as client:
        embed_until_both_got_calls(client, replicas)
        replicas[0].fail(*DRAINING, times=None)
        refused = len(replicas[0].calls)
        for _ in range(6):
            assert client.embed(["x" * 900_000]).shape == (1, 8)
        for _ in range(70):
            client.models()

    assert len(replicas[0].calls) > refused + 60


@pytest.mark.parametrize("check_health", [True, False])
def test_a_replica_that_does_not_serve_gets_no_calls(
    replicas: tuple[FakeServer, FakeServer], check_health: bool
) -> None:
    """A server gets no calls from when its health is NOT_SERVING until it is SERVING again."""
    with Client(target_of(replicas), check_health=check_health) as client:
        embed_until_both_got_calls(client, replicas)
        replicas[0].serving = False
        if check_health:
            embed_until_one_gets_no_calls(client, replicas[0])
        replicas[0].calls.clear()
        for _ in range(10):
            client.embed(["text"])

        assert len(replicas[0].calls) == (0 if check_health else 5)

        replicas[0].serving = True
        embed_until_both_got_calls(client, replicas)


def test_an_absent_server_is_reported(client: Client, server: FakeServer) -> None:
    """If no attempt succeeds, the error gives the reason within seconds."""
    server.fail(*DRAINING, times=None)
    start = time.monotonic()
    with pytest.raises(ConnectionFailed, match=r"the server is draining\); try again"):
        client.embed(["text"])

    assert len(server.calls) == 3
    assert time.monotonic() - start < 10


def test_a_lost_connection_costs_no_call(client: Client, server: FakeServer) -> None:
    """The client sends the requests of a lost connection again over a new one."""
    server.drop()

    assert client.embed(["text"]).shape == (1, 8)
    assert len(server.calls) == 2


def test_repeatedly_lost_connections_are_reported(client: Client, server: FakeServer) -> None:
    """After three lost connections, the error states this, not that there is no server."""
    server.drop(times=3)
    with pytest.raises(ConnectionFailed, match="the connection was lost; try again"):
        client.embed(["text"])


@both_clients
def test_calls_that_a_server_cancels_are_sent_again(server: FakeServer, embed: Embed) -> None:
    """Calls that gRPC cancels because the server stops are sent again."""
    server.fail("CANCELLED", "CANCELLED", times=2)

    assert len(embed(server.target, ["text"])) == 1
    assert len(server.calls) == 3


@pytest.mark.parametrize("pushback_ms", [1, 600])
def test_pushback_delays_the_retry(client: Client, server: FakeServer, pushback_ms: int) -> None:
    """The server's pushback overrides the client's own pause of at most 0.2 s."""
    server.overload(times=2, pushback_ms=pushback_ms)
    start = time.monotonic()
    client.embed(["text"])

    assert len(server.calls) == 3
    assert time.monotonic() - start > 2 * pushback_ms / 1000


def test_negative_pushback_prevents_a_retry(client: Client, server: FakeServer) -> None:
    """A negative pushback prevents a retry."""
    server.overload(times=None, pushback_ms=-1)
    with pytest.raises(Overloaded, match="the queue is full"):
        client.embed(["text"])

    assert len(server.calls) == 1


def test_retries_are_throttled(client: Client, server: FakeServer) -> None:
    """While a server refuses most calls, the client retries few of them."""
    server.overload(times=None, pushback_ms=1)
    for _ in range(100):
        with pytest.raises(Overloaded):
            client.embed(["text"])

    assert 100 < len(server.calls) < 140

    server.reset()
    for _ in range(50):
        client.embed(["text"])
    server.overload(times=2, pushback_ms=1)
    client.embed(["text"])

    assert len(server.calls) == 53


@both_clients
def test_a_list_does_not_fail_by_its_own_load(server: FakeServer, embed: Embed) -> None:
    """A request that finds a full queue is sent again when the list's other requests have ended."""
    server.overload(times=5, pushback_ms=1)  # three attempts of one request, and two of the other
    assert len(embed(server.target, ["one", "two"], batch_size=1, num_in_flight=2)) == 2

    assert len(server.calls) == 7


@both_clients
def test_a_list_fails_if_the_queue_stays_full(server: FakeServer, embed: Embed) -> None:
    """If the queue is full without the list's other requests, the call fails."""
    server.overload(times=None, pushback_ms=1)
    with pytest.raises(Overloaded, match="the queue is full"):
        embed(server.target, ["one", "two", "three"], batch_size=1, num_in_flight=2)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory):
    models = tmp_path_factory.mktemp("models")
    write_model(models, "embedder")
    return models


def refusals(running) -> float:
    return running.total("grpc_server_handled_total", grpc_code="ResourceExhausted")


def test_a_full_queue_is_retried(models, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client waits for the time that a real server with a full queue gives, and is answered."""
    full = [QueueFullError("the queue is full; try later", retry_s=0.6)] * 2
    admit = Scheduler._admit

    def refuse(*arguments, **options) -> None:
        if full:
            raise full.pop()
        admit(*arguments, **options)

    monkeypatch.setattr(Scheduler, "_admit", refuse)
    with serve(models) as running, Client(running.target) as client:
        start = time.monotonic()
        assert client.embed(["the cat"] * 4).shape == (4, 8)

        assert refusals(running) == 2
    assert time.monotonic() - start > 1.2


@pytest.fixture(scope="module")
def narrow(models):
    """Server that takes requests of 1,000 bytes."""
    with serve(models, max_request_bytes=1000) as running:
        yield running


def test_a_request_too_large_for_the_server_is_sent_once(narrow) -> None:
    """The client sends a request once that is too large for a real server."""
    with Client(narrow.target) as client:
        with pytest.raises(Overloaded, match="too large"):
            client.embed(["a text of some length"] * 60)

        narrow.wait_for("grpc_server_handled_total", 1, grpc_code="ResourceExhausted")
        assert refusals(narrow) == 1


def test_a_request_too_large_for_grpc_is_final(narrow) -> None:
    """A request that gRPC refuses as too large raises a final Overloaded."""
    message = r"Received message larger than max .*; lower `batch_size`"
    with Client(narrow.target, batch_size=200) as client, pytest.raises(Overloaded, match=message) as caught:
        client.embed(["a text of some length"] * 200)

    assert caught.value.is_final
    assert "try again" not in str(caught.value)


def test_a_job_splits_requests_that_are_too_large(narrow, run: Run, tmp_path: Path) -> None:
    """A job splits requests that gRPC or the server refuses as too large; only a row that is too large alone is
    rejected."""
    rows = [f"the {'cat ' * 15}{number}" for number in range(32)]
    rows[20] = "cat " * 600
    (tmp_path / "in.txt").write_text("\n".join(rows))
    arguments = ("-i", f"{tmp_path}/in.txt", "-o", f"{tmp_path}/out.npy", "--patience", "0.1", "-t", narrow.target)
    result = run("embed", *arguments)

    assert (result.code, "waiting" in result.err) == (3, False)
    assert np.flatnonzero(np.isnan(np.load(tmp_path / "out.npy")).any(axis=1)).tolist() == [20]
    assert "text: too large for the server" in (tmp_path / "out.npy.rejects.jsonl").read_text()
