from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from bertline import AsyncClient, Client
from bertline import _connection as connection
from bertline.errors import ConnectionFailed, ServerError, Unauthenticated
from bertline.testing import FakeServer
from tests.clients.command import Embed, both_clients
from tests.serving.conftest import serve
from tests.serving.models import write_model

TOKEN = "secret-token"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    write_model(models, "embedder")
    return models


@pytest.fixture(scope="module")
def real(models: Path) -> Iterator[Any]:
    with serve(models) as running:
        yield running


def test_health_of_server_model_and_version(real: Any) -> None:
    """A real server reports the health of itself, a model and a version."""
    with Client(real.target) as client:
        assert client.health()
        assert client.health("embedder")
        assert client.health("embedder", "1")
        assert not client.health("embedder", "2")
        assert not client.health("other")

    async def ask() -> list[bool]:
        async with AsyncClient(real.target) as client:
            return [await client.health(), await client.health("embedder", "1"), await client.health("other")]

    assert asyncio.run(ask()) == [True, True, False]


def test_health_of_a_server_that_starts(models: Path) -> None:
    """A server that does not serve yet reports it, and gets no calls."""
    with serve(models, load=False) as running, Client(running.target) as client:
        assert not client.health()
        with pytest.raises(ConnectionFailed, match="its health is NOT_SERVING"):
            client.embed(["cat"])
        assert running.total("grpc_server_handled_total", grpc_method="Embed") == 0


def test_health_without_a_server(dead_target: str) -> None:
    """A missing server is an error, not an unhealthy server."""
    with Client(dead_target) as client, pytest.raises(ConnectionFailed):
        client.health()


@pytest.fixture(scope="module", params=[False, True], ids=["token for health", "open health"])
def guarded(models: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the target of a server that requires a token."""
    tokens = tmp_path_factory.mktemp("access") / "tokens"
    tokens.write_text(TOKEN)
    with serve(models, tokens_file=tokens, open_health=request.param) as running:
        yield running.target


@pytest.mark.parametrize("check_health", [None, True])
def test_servers_that_require_a_token(guarded: str, check_health: bool | None) -> None:
    """Every call with the token succeeds, whether health needs the token or not."""
    with Client(guarded, token=TOKEN, check_health=check_health, batch_size=2) as client:
        for count in (1, 9):
            assert client.embed(["cat"] * count).shape == (count, 8)
        assert client.health()


@both_clients
def test_a_missing_token_is_reported(guarded: str, embed: Embed) -> None:
    """A call without the token fails soon with an error that states this, whether health needs the token or not."""
    start = time.monotonic()
    for count in (1, 100):
        with pytest.raises(Unauthenticated, match="the call has no token"):
            embed(guarded, ["cat"] * count)

    assert time.monotonic() - start < 5


def refuse_health(server: FakeServer) -> None:
    server._admit_health = lambda context: context.abort(grpc.StatusCode.PERMISSION_DENIED, "not for you")


def test_refused_health_checks_are_left_out(server: FakeServer) -> None:
    """A client whose health checks are refused makes its calls without them."""
    refuse_health(server)
    with Client(server.target) as client:
        assert client.embed(["text"]).shape == (1, 8)
        assert not client._stubs.is_checked("Embed")


def test_refused_health_checks_are_tried_again(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused health checks are tried again, and then stop calls to a server that does not serve."""
    monkeypatch.setattr(connection, "PLAIN_S", 0.0)
    refuse_health(server)
    with Client(server.target) as client:
        client.embed(["text"])
        server._admit_health = lambda context: None
        server.serving = False
        with pytest.raises(ConnectionFailed, match="its health is NOT_SERVING"):
            embed_for_a_minute(client)


def embed_for_a_minute(client: Client) -> None:
    """Embed for up to a minute; gRPC asks for the health a second after it was refused."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        client.embed(["text"])


@pytest.mark.parametrize("target", ["localhost:{port}", "ipv4:{alive},{dead}", "ipv4:{dead},{alive}"])
def test_a_server_that_is_not_serving_beside_an_absent_one(server: FakeServer, dead_target: str, target: str) -> None:
    """A server that does not serve gets no calls, in any order of the addresses that a target resolves to."""
    server.serving = False
    target = target.format(port=server.target.split(":")[1], alive=server.target, dead=dead_target)

    async def embed() -> None:
        async with AsyncClient(target) as client:
            await client.embed(["text"])

    with Client(target) as client, pytest.raises(ConnectionFailed):
        client.embed(["text"])
    with pytest.raises(ConnectionFailed):
        asyncio.run(embed())

    assert server.calls == []


def test_a_server_without_health_service_gets_calls(client: Client, server: FakeServer) -> None:
    """Calls to a server without a health service succeed, and its health is an error."""
    server._admit_health = lambda context: context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such service")

    assert client.embed(["text"]).shape == (1, 8)
    with pytest.raises(ServerError, match="UNIMPLEMENTED"):
        client.health()


@pytest.fixture
def short_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "KEEPALIVE_S", 1.0)
    monkeypatch.setattr(connection, "KEEPALIVE_TIMEOUT_S", 1.0)


@pytest.mark.usefixtures("short_pings")
def test_a_dead_connection_is_noticed(server: FakeServer) -> None:
    """A call on a silent connection fails long before its timeout."""
    with Client(server.target, timeout=60) as client:
        client.embed(["text"])
        server.silence()
        start = time.monotonic()
        with pytest.raises(ConnectionFailed):
            client.embed(["text"])

    assert time.monotonic() - start < 20


@pytest.mark.slow
@pytest.mark.parametrize("calls", [False, True])
def test_a_real_server_accepts_the_pings(real: Any, calls: bool) -> None:
    """A real server closes no connection because of pings, with and without health checks."""
    with Client(real.target, check_health=calls) as client:
        client.embed(["cat"])
        before = real.total("grpc_server_started_total", grpc_method="Watch")
        time.sleep(3 * connection.KEEPALIVE_S + 5)
        client.embed(["cat"])

        assert real.total("grpc_server_started_total", grpc_method="Watch") == before
