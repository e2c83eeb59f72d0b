"""Attacks on the HTTP port, on loopback. All of them are bounded."""

import gzip
import http.client
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

MAX_BYTES = 4 * 2**20
"""Default of --max-request-bytes."""
Request = tuple[str, bytes, dict[str, str]]
"""Path, body, headers."""


def full(head: bytes, item: bytes, tail: bytes, separator: bytes = b",") -> bytes:
    """Return a body of the maximum size with as many items as fit."""
    count = (MAX_BYTES - len(head) - len(tail)) // (len(item) + len(separator))
    return head + separator.join([item] * count) + tail


def compressed(path: str, body: bytes) -> Request:
    return path, gzip.compress(body), {"content-encoding": "gzip"}


def posts(target: str, requests: Iterable[Request], count: int, seconds: float) -> None:
    """Send requests again and again, `count` at a time, each on a new connection."""
    ends_s, turns, lock = time.monotonic() + seconds, itertools.cycle(list(requests)), threading.Lock()

    def work() -> None:
        while (left_s := ends_s - time.monotonic()) > 0:
            with lock:
                path, body, headers = next(turns)
            connection = http.client.HTTPConnection(target, timeout=max(left_s, 1))
            with suppress(OSError, http.client.HTTPException):
                connection.request("POST", path, body, {"content-type": "application/json"} | headers)
                connection.getresponse().read()
            connection.close()

    together(count, work)


def together(count: int, function: Callable[[], object]) -> None:
    threads = [threading.Thread(target=function) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def stream(target: str, data: bytes, seconds: float, *, head: bytes = b"", reads: bool = False) -> None:
    """Send the same bytes again and again on one connection, after a head; a new one if it is closed."""
    ends_s = time.monotonic() + seconds
    host, port = target.split(":")
    while (left_s := ends_s - time.monotonic()) > 0:
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=left_s) as connection:
            if not reads:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(head)
            while time.monotonic() < ends_s:
                connection.sendall(data)


def pages(target: str, seconds: float) -> None:
    """Pipelined requests for the page's files, whose replies nobody reads."""
    stream(target, b"GET /playground/style.css HTTP/1.1\r\nhost: localhost\r\n\r\n" * 1000, seconds)


def empty_objects(target: str, seconds: float) -> None:
    body = full(b'{"inputs": [', b"{}", b"]}")
    posts(target, [("/v2/models/embed/infer", body, {}), ("/v1/classify", body, {})], 4, seconds)


def compressed_objects(target: str, seconds: float) -> None:
    posts(target, [compressed("/v2/models/embed/infer", full(b'{"inputs": [', b"{}", b"]}"))], 4, seconds)


def strange_values(target: str, seconds: float) -> None:
    """Unknown fields, arrays for texts, numbers for texts, nested arrays, long keys."""
    fields = b"{" + b",".join(b'"x%d": 0' % number for number in range(330_000)) + b"}"
    bodies = [
        ("/v1/embeddings", fields),
        ("/tei/embed/predict", full(b'{"inputs": [', b'["a"]', b"]}")),
        ("/v1/embeddings", full(b'{"input": [', b"1", b"]}")),
        ("/tei/embed/decode", full(b'{"ids": [', b"[]", b"]}")),
        ("/tei/embed/decode", full(b'{"ids": [', b"1000", b"]}")),
        ("/v1/embed", full(b"[", b"[", b"", b"")),
        ("/v1/rerank", full(b'{"query": "a", "documents": [', b'{"text": ""}', b"]}")),
        ("/embed", b'{"' + b"a" * (MAX_BYTES - 10) + b'": 1}'),
        ("/embed", full(b'{"inputs": "', b"\\u4e2d", b'"}', b"")),
    ]
    posts(target, [(path, body, {}) for path, body in bodies], 2, seconds)


def full_stops(target: str, seconds: float) -> None:
    body = json.dumps({"inputs": ["." * 990_000] * 4}).encode()
    posts(target, [("/tei/embed/tokenize", body, {})], 2, seconds)


def token_ids(target: str, seconds: float) -> None:
    """A long row of token ids among thousands of short ones."""
    connection = http.client.HTTPConnection(target, timeout=60)
    connection.request("POST", "/v1/tokenize", json.dumps({"model": {"name": "embed"}, "inputs": [{"text": "a"}]}))
    first, *inside, last = json.loads(connection.getresponse().read())["results"][0]["ids"]
    connection.request("GET", "/tei/embed/info")
    longest = json.loads(connection.getresponse().read())["max_input_length"]
    connection.close()
    rows = [[first, *inside[:1] * (longest - 2), last], *[[first, *inside[:1], last]] * 8000]
    posts(target, [("/v1/embeddings", json.dumps({"model": "embed", "input": rows}).encode(), {})], 16, seconds)


def masks(target: str, seconds: float) -> None:
    """Scores of many tokens for many masks: as many as a reply may have, and too many."""
    bodies = [json.dumps({"texts": ["[MASK] " * number], "top_k": 8000}).encode() for number in (32, 130)]
    posts(target, [("/v1/fill-mask", body, {}) for body in bodies], 4, seconds)


def large_replies(target: str, seconds: float) -> None:
    """Large bodies, whose replies of many megabytes nobody reads."""
    body = json.dumps({"model": "embed", "input": ["a"] * 1000, "user": "a" * 3_500_000}).encode()
    head = b"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
    together(12, lambda: stream(target, head + body, seconds))


def heads(target: str, seconds: float) -> None:
    """Heads that do not end, of many small headers and of one large one, on 500 connections at a time."""
    host, port = target.split(":")
    ends_s, data = time.monotonic() + seconds, [b"a:\r\n" * 8000, b"a: " + b"a" * 32_000]
    while time.monotonic() < ends_s:
        connections = []
        for number in range(500):
            with suppress(OSError):
                connections.append(socket.create_connection((host, int(port)), timeout=5))
                connections[-1].sendall(b"GET / HTTP/1.1\r\n" + data[number % 2])
        time.sleep(max(0.0, min(3.0, ends_s - time.monotonic())))
        for connection in connections:
            connection.close()


def chunks(target: str, seconds: float) -> None:
    """Bodies in chunks of a byte, and chunks with long extensions."""
    head = b"POST /v1/embed HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    together(2, lambda: stream(target, b"1\r\na\r\n" * 10_000, seconds / 2, head=head, reads=True))
    together(2, lambda: stream(target, b"1;" + b"a" * 100_000, seconds / 2, head=head, reads=True))


def upgrades(target: str, seconds: float) -> None:
    """Requests that ask for another protocol, each with a body."""
    body = json.dumps({"model": {"name": "embed"}, "texts": ["a"]}).encode()
    headers = {"connection": "upgrade, http2-settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQAAP__"}
    posts(target, [("/v1/embed", body, headers)], 4, seconds)
