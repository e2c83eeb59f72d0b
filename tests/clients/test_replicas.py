"""Several servers behind one name."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from bertline import AsyncClient, Client
from bertline.errors import ConnectionFailed
from tests.clients.fake_server import FakeEncoder, serve

DRAINING = (grpc.StatusCode.UNAVAILABLE, "the server is draining")


@pytest.fixture
def replicas():
    """Two servers, and the target that stands for both."""
    encoders = FakeEncoder(), FakeEncoder()
    with serve(encoders[0]) as first, serve(encoders[1]) as second:
        yield encoders, f"ipv4:{first},{second}"


def embed_until_both_were_asked(client, encoders):
    """Connections come up one after the other."""
    end = time.monotonic() + 5
    while not all(encoder.requests for encoder in encoders):
        client.embed(["text"])
        assert time.monotonic() < end


def test_all_replicas_are_asked(replicas):
    """A client divides its requests among the servers that its target names."""
    encoders, target = replicas
    with Client(target) as client:
        embed_until_both_were_asked(client, encoders)
        before = [len(encoder.requests) for encoder in encoders]
        for _ in range(10):
            client.embed(["text"])

    assert [len(encoder.requests) - count for encoder, count in zip(encoders, before, strict=True)] == [5, 5]


def test_a_draining_replica_costs_no_call(replicas):
    """What one server refuses since it drains, another answers; a large request as well."""
    encoders, target = replicas
    with Client(target) as client:
        embed_until_both_were_asked(client, encoders)
        encoders[0].status = DRAINING
        refused = len(encoders[0].requests)
        for _ in range(6):
            assert client.embed(["x" * 900_000]).shape == (1, 4)

    assert len(encoders[0].requests) > refused


def test_async_client(replicas):
    """The client for asyncio asks again, too."""
    encoders, target = replicas
    encoders[0].status = DRAINING

    async def ask():
        async with AsyncClient(target) as client:
            return [len(await client.embed(["text"])) for _ in range(6)]

    assert asyncio.run(ask()) == [1] * 6


def test_a_server_that_stays_away_is_told_of(client, encoder):
    """When no attempt succeeds, the error says why, within a second."""
    encoder.status = DRAINING
    start = time.monotonic()
    with pytest.raises(ConnectionFailed, match=r"the server is draining\); try again"):
        client.embed(["text"])

    assert len(encoder.requests) == 3
    assert time.monotonic() - start < 1
