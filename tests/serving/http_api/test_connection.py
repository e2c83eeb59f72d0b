"""Connections: what clients may send on them, in which pieces, and what closes them."""

import gc
import socket
import threading
import time
from contextlib import ExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.calls import Call
from serving.http_api.connection import Connection
from serving.http_api.exchange import Request
from serving.http_api.framing import ChunkedBody, Head, MalformedRequestError
from tests.serving.conftest import serve
from tests.serving.http_api.requests import exchange, raw_connection, read_all, send
from tests.serving.reliability import wait_until

BODY = b'{"texts": ["the cat"], "model": {"name": "embedder"}}'
POST = b"POST /v1/embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n" % len(BODY)
LAST = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


def chunked(*parts, extension=b"", end=b"0\r\n\r\n"):
    return b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts) + end


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
@pytest.mark.parametrize("path", ["/v1/embed", "/", "/none"])
def test_upgrades_are_declined(protocol, path, server):
    """The body belongs to the request, and what follows is the next request (RFC 9110, section 7.8)."""
    method = b"POST" if path == "/v1/embed" else b"GET"
    upgrade = b"connection: Upgrade, HTTP2-Settings\r\nhttp2-settings: AAMAAABkAAQAAP__\r\nupgrade: %b\r\n"
    body = BODY if method == b"POST" else b""
    head = b"%b %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n" % (method, path.encode(), len(body))

    reply = exchange(server, head + upgrade % protocol.encode() + b"\r\n" + body + LAST)

    assert reply.startswith(b"HTTP/1.1 404" if path == "/none" else b"HTTP/1.1 200")
    assert reply.endswith(b'{"status":"ok"}')


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /health\r\n\r\n", 505),
        (b"GET /health HTTP/0.9\r\n\r\n", 505),
        (b"GET /health HTTP/2.0\r\n\r\n", 505),
        (b"GET /health HTTP/1.1\r\nhost: localhost\r\nhost: b\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\naccept: */*\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 129 + b"\r\n", 431),
        (b"POST /v1/embed HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n", 501),
        (
            b"POST /v1/embed HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
            400,
        ),
        (b"POST /v1/embed HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd", 400),
        (b"POST /v1/embed HTTP/1.1\r\nhost: a\r\ncontent-length: -3\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\nhost: localhost\n\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET /health HTTP/1.1\r\na: b\x00\r\n\r\n", 400),
        (b"CONNECT localhost:443 HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
        (b"GET http://[ HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n", 400),
    ],
)
def test_heads_that_are_refused(head, status, server):
    """Each ends the connection, also if it arrives in pieces."""
    for parts in ((head,), (head[:1], head[1:12], head[12:])):
        assert exchange(server, *parts).startswith(b"HTTP/1.1 %d " % status)


def test_refused_heads_are_counted(server):
    """They count as requests of an unknown route."""
    labels = {"http_route": "unknown", "http_status": "505"}
    before = server.total("http_server_handled_total", **labels)
    exchange(server, b"GET /health\r\n\r\n")

    assert server.total("http_server_handled_total", **labels) == before + 1


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (chunked(BODY), 200),
        (chunked(BODY[:1], BODY[1:20], BODY[20:]), 200),
        (chunked(*(BODY[place : place + 1] for place in range(len(BODY)))), 200),
        (chunked(BODY, extension=b" ; a=b"), 200),
        (chunked(BODY, end=b"0\r\nx-checksum: 1\r\n\r\n"), 200),
        (chunked(BODY, end=b"000;last\r\n\r\n"), 200),
        (chunked(BODY, extension=b";" + b"a" * 300), 400),
        (chunked(BODY, end=b"0\r\n" + b"a: b\r\n" * 6000 + b"\r\n"), 400),
        (chunked(*[b" "] * 5000, BODY), 200),
        (chunked(*[b" "] * 9000), 400),
        (b"g\r\n", 400),
        (b"-1\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"1\r\nabc\r\n", 400),
        (b"f" * 16 + b"\r\n", 400),
        (b"a" * 300, 400),
        (b"3\nabc\n", 400),
    ],
)
def test_chunks(data, status, server, monkeypatch):
    """Chunks of any size are read, unless their framing is wrong or more than their content is worth."""
    monkeypatch.setattr("serving.http_api.framing.MAX_FRAMING_BYTES", 2**15)
    head = b"POST /v1/embed HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"

    reply = exchange(server, head + b"connection: close\r\n\r\n", data)
    assert reply.startswith(b"HTTP/1.1 %d " % status)
    assert status == 200 or b"the body cannot be read: " in reply
    if status == 200:
        assert exchange(server, head + b"\r\n" + data + LAST).endswith(b'{"status":"ok"}')


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=20), st.lists(st.integers(1, 50), min_size=1))
def test_chunks_in_any_pieces(parts, sizes):
    """The content is the same, however the bytes arrive, and the bytes after the body stay."""
    data, body, received, found = bytearray(chunked(*parts) + b"next"), ChunkedBody(), bytearray(), b""
    while data:
        size = sizes[len(data) % len(sizes)]
        received += data[:size]
        del data[:size]
        found += body.take(received)

    assert (found, body.is_complete, bytes(received)) == (b"".join(parts), True, b"next")


@given(st.binary(max_size=100))
def test_no_chunks_cause_another_error(data):
    """Any bytes are chunks, wait for more, or are malformed."""
    with suppress(MalformedRequestError):
        assert isinstance(ChunkedBody().take(bytearray(data)), bytes)


def test_requests_wait_while_replies_are_unread(embedder):
    """A client that sends requests and reads nothing is not read from, and closed after --keepalive-timeout-s."""
    with serve(embedder, http_port=0, keepalive_timeout_s=1.5) as running, raw_connection(running) as connection:
        before = running.total("http_server_started_total")
        connection.settimeout(0.3)
        num_sent = 0
        with suppress(OSError):  # a time-out when the buffers of the system are full
            while num_sent < 2**28:
                num_sent += connection.send(b"GET /playground/style.css HTTP/1.1\r\nhost: localhost\r\n\r\n" * 100)
        num_answered = running.total("http_server_started_total") - before
        [held] = running.server._http.open

        assert len(held._data) < 2**17
        assert num_answered * 50 < num_sent
        assert running.server._budget.reserved_bytes >= held._num_counted
        wait_until(lambda: not running.server._http.open, "the connection stays open")
        wait_until(lambda: not running.server._budget.reserved_bytes, "memory stays reserved")


@pytest.fixture(scope="module")
def crowded(embedder):
    """Server with room for three connections."""
    with serve(embedder, http_port=0, max_connections=3) as running:
        yield running


def test_the_oldest_idle_connection_gives_way(crowded):
    """A new connection is accepted at --max-connections, unless all are busy."""
    with ExitStack() as stack:
        old = [stack.enter_context(raw_connection(crowded)) for _ in range(3)]
        for connection in (old[1], old[0], old[2]):
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")

        assert exchange(crowded, LAST).startswith(b"HTTP/1.1 200")
        assert old[1].recv(1) == b""
        for connection in (old[0], old[2]):
            connection.sendall(LAST)
            assert read_all(connection).startswith(b"HTTP/1.1 200")


def test_busy_connections_do_not_give_way(crowded):
    """If requests arrive on all connections, a further one is closed."""
    wait_until(lambda: not crowded.server._http.open, "a connection of another test is open")
    with ExitStack() as stack:
        busy = [stack.enter_context(raw_connection(crowded)) for _ in range(3)]
        for connection in busy:
            connection.sendall(POST + b"\r\n" + BODY[:5])
        wait_until(lambda: len(crowded.server._http.tasks) == 3, "the requests do not start")
        with raw_connection(crowded) as other, suppress(ConnectionError):
            other.sendall(LAST)
            assert other.recv(1) == b""
        busy[0].sendall(BODY[5:])
        assert busy[0].recv(65536).startswith(b"HTTP/1.1 200")


def test_large_heads_count(embedder, monkeypatch):
    """Heads of more than 4 KiB that do not end need memory of the budget, and give way to requests that lack it."""
    monkeypatch.setattr("serving.http_api.connection.LINGER_S", 0.2)
    with serve(embedder, http_port=0, max_request_bytes=2**18, buffer_bytes=2**20) as running, ExitStack() as stack:
        budget = running.server._budget
        for _ in range(40):
            connection = stack.enter_context(raw_connection(running))
            connection.sendall(b"GET / HTTP/1.1\r\na: " + b"a" * 30_000)
        wait_until(lambda: budget.free_bytes < 2**17, "heads take no memory")
        assert 0 < budget.reserved_bytes <= budget.num_bytes
        body = BODY.replace(b"the cat", b"the cat " * 20_000)

        def is_answered():
            return send(running, "POST", "/v1/embed", body.replace(b"}}", b'}, "truncate": true}')).status != 429

        wait_until(is_answered, "heads keep their memory", limit_s=30)


def test_a_refusal_is_seen_by_who_still_sends(server):
    """The rest of a request that is refused early is read, so that its client sees the reply instead of a reset."""
    head = b"POST /v1/embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50000000\r\n\r\n"
    with raw_connection(server) as connection:
        sender = threading.Thread(target=lambda: _send_all(connection, head + b"a" * 8_000_000))
        sender.start()
        reply = connection.recv(65536)
        sender.join()

    assert reply.startswith(b"HTTP/1.1 413 ")


def _send_all(connection, data):
    with suppress(OSError):
        connection.sendall(data)


def test_clients_that_ask_before_they_send(server):
    """A client that expects 100 Continue gets it when its body is wanted, and no such line otherwise."""
    with raw_connection(server) as connection:
        connection.sendall(POST + b"expect: 100-continue\r\n\r\n")
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    refused = exchange(server, POST.replace(b": 53", b": 53000000") + b"expect: 100-continue\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 413")


def test_http_1_0(server):
    """A client of HTTP/1.0 keeps the connection only if it asks for it."""
    once = b"GET /health HTTP/1.0\r\n\r\n"
    kept = b"GET /health HTTP/1.0\r\nconnection: keep-alive\r\n\r\n"

    assert b"connection: close" in exchange(server, once)
    assert exchange(server, kept + once).count(b"connection: keep-alive") == 1


def test_requests_of_any_pieces(server):
    """A request is the same byte by byte, and after empty lines."""
    data = b"\r\n\r\n" + POST + b"connection: close\r\n\r\n" + BODY
    with raw_connection(server) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for place in range(len(data)):
            connection.sendall(data[place : place + 1])

        assert read_all(connection).startswith(b"HTTP/1.1 200")


def test_connections_leave_nothing_behind(server):
    """Closed connections, refused ones too, and their requests are freed without the garbage collector."""
    connections, kinds = server.server._http, (Connection, Head, Request)
    wait_until(lambda: not connections.open, "a connection of another test is open")
    gc.collect()
    gc.disable()
    try:
        for data in (LAST, b"bad\r\n\r\n", POST + b"\r\n", POST + b"connection: close\r\n\r\n" + BODY):
            with raw_connection(server) as connection:
                connection.sendall(data)
                time.sleep(0.05)
        wait_until(lambda: not connections.open and not connections.waiting and not connections.tasks, "one is left")
        wait_until(lambda: not [item for item in gc.get_objects() if type(item) in kinds], "objects are left")
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("connection", "network"),
    [
        ("ipv4:192.0.2.7:50123", "ipv4:192.0.2.7"),
        ("ipv6:[2001:db8:1:2:3:4:5:6]:50123", "2001:db8:1:2::/64"),
        ("ipv6:[2001:db8:1:2::9]:1", "2001:db8:1:2::/64"),
        ("ipv6:[fe80::1%eth0]:1", "fe80::/64"),
        ("ipv6:[::1]:1", "::/64"),
        ("", ""),
        ("unix:", "unix"),
    ],
)
def test_networks_of_clients(connection, network):
    """All addresses of an IPv6 network of 64 bits are one client; so is each IPv4 address."""
    assert Call("", connection=connection).network == network
