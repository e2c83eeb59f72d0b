"""Memory of requests and replies over HTTP: small ones wait for it, and unread replies are counted."""

import asyncio
import json
import re
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from tests.serving.conftest import serve
from tests.serving.http_api.requests import head_of, port_of, post, raw_connection, read_all, send
from tests.serving.reliability import wait_until

MIB = 2**20
BODY = {"model": {"name": "embedder"}, "texts": ["the cat"]}
LARGE = BODY | {"texts": ["the cat " * 2500], "truncate": True}
LONG = {"model": {"name": "embedder"}, "inputs": [{"text": "the cat " * 16_000}] * 4}


@pytest.fixture
def patient(monkeypatch):
    """Make small calls wait for memory for a minute, longer than the client."""
    monkeypatch.setattr("serving.core.request_memory.WAIT_S", 60)


@contextmanager
def full(server):
    """Reserve all memory; yield the budget."""
    budget = server.server._budget
    wait_until(lambda: not budget.reserved_bytes, "a call does not end")

    async def take():
        size = budget.free_bytes
        budget.add("other", size)
        return size

    size = asyncio.run_coroutine_threadsafe(take(), server.loop).result(30)
    try:
        yield budget
    finally:
        server.loop.call_soon_threadsafe(budget.add, "other", -size)


@contextmanager
def slow_connection(server):
    """Open a connection that takes little of a reply before it is read."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(60)
        connection.connect(("127.0.0.1", port_of(server)))
        yield connection


def wait_for_waiting(budget, count):
    wait_until(lambda: budget._num_waiting == count, f"never do {count} calls wait", limit_s=20)


def head_for(path, body, **headers):
    return head_of(path, **{"host": "localhost", "content-length": len(body)} | headers)


@pytest.mark.parametrize("num_parts", [1, 3])
def test_small_requests_wait_for_memory(num_parts, server, patient):
    """A small request is answered once there is memory, also if its body comes in parts."""
    body = json.dumps(BODY).encode()
    step = len(body) // num_parts + 1
    with raw_connection(server) as connection:
        with full(server) as budget:
            connection.sendall(head_for("/v1/embed", body))
            for start in range(0, len(body), step):
                assert budget._num_waiting == 0
                connection.sendall(body[start : start + step])
                time.sleep(0.02)
            wait_for_waiting(budget, 1)

        assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK")


def test_small_replies_wait_for_memory(server, patient):
    """A small reply is sent once there is memory."""
    with ThreadPoolExecutor(1) as threads:
        with full(server) as budget:
            result = threads.submit(send, server, "GET", "/v1/models")
            wait_for_waiting(budget, 1)

        assert result.result().status == 200


@pytest.mark.parametrize(("body", "wait_s"), [(BODY, 0.2), (LARGE, 0)])
def test_memory_that_stays_used(body, wait_s, server, monkeypatch):
    """A small request is refused if there is no memory for some time, one of more than 16 KiB immediately."""
    monkeypatch.setattr("serving.core.request_memory.WAIT_S", wait_s or 60)
    with full(server):
        started_s = time.monotonic()
        reply = post(server, "/v1/embed", body)

        assert wait_s <= time.monotonic() - started_s < 30
    assert (reply.status, reply.error["reason"], reply.headers["retry-after"]) == (429, "NO_MEMORY", "1")


def test_a_client_that_hangs_up_stops_waiting(server, patient):
    """A request whose client has gone no longer waits for memory."""
    body = json.dumps(BODY).encode()
    with full(server) as budget:
        with raw_connection(server) as connection:
            connection.sendall(head_for("/v1/embed", body) + body)
            wait_for_waiting(budget, 1)

        wait_for_waiting(budget, 0)


def test_health_needs_no_memory(server, patient):
    """Health checks are answered while all memory is used."""
    with full(server):
        assert [send(server, "GET", path).status for path in ("/health", "/v2/health/ready")] == [200, 200]


def test_burst_of_small_requests_is_answered(embedder, patient):
    """A burst of hundreds of requests on separate connections is answered, also with little memory."""
    body = json.dumps(BODY | {"texts": ["the cat"] * 4}).encode()

    async def ask(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head_for("/v1/embed", body, connection="close") + body)
        status = await reader.readline()
        writer.close()
        return status

    async def ask_all(port):
        return Counter(await asyncio.gather(*(ask(port) for _ in range(400))))

    with serve(embedder, http_port=0, max_request_bytes=MIB, buffer_bytes=4 * MIB, max_queue_s=1000) as running:
        assert asyncio.run(ask_all(port_of(running))) == {b"HTTP/1.1 200 OK\r\n": 400}


def test_a_client_that_does_not_read(embedder):
    """A reply that nobody reads counts as used memory, until its connection is closed."""
    body = json.dumps(LONG).encode()
    with serve(embedder, http_port=0, keepalive_timeout_s=0.5) as running, slow_connection(running) as connection:
        budget = running.server._budget
        connection.sendall(head_for("/v1/tokenize", body) + body)
        wait_until(lambda: budget.reserved_bytes > 5 * len(body), "the reply is not counted")
        wait_until(lambda: budget.reserved_bytes == 0, "the reply stays in memory")
        with suppress(ConnectionError):
            head, _, data = read_all(connection).partition(b"\r\n\r\n")
            assert len(data) < int(re.search(rb"content-length: (\d+)", head)[1])


def test_a_client_that_reads_slowly(embedder):
    """A client that reads a few bytes now and then keeps its reply, until others need the memory."""
    body = json.dumps(LONG).encode()
    with serve(embedder, http_port=0, keepalive_timeout_s=0.5) as running, slow_connection(running) as connection:
        budget = running.server._budget
        connection.sendall(head_for("/v1/tokenize", body) + body)
        wait_until(lambda: budget.reserved_bytes > 5 * len(body), "the reply is not counted")
        ends = time.monotonic() + 0.8
        while time.monotonic() < ends:
            assert connection.recv(1000)
            time.sleep(0.01)
        assert budget.reserved_bytes > 5 * len(body)

        running.loop.call_soon_threadsafe(budget.add, "other", budget.free_bytes)
        wait_until(lambda: post(running, "/v1/embed", BODY).status == 200, "the reply stays in memory")
        with suppress(ConnectionError):
            read_all(connection)
