"""Bodies of the maximum size in the worst shapes, on every route of openapi.json: neither time nor memory."""

import gzip
import random
import re
import threading
import time
from contextlib import contextmanager
from functools import partial

import pytest

from serving.process.memory_trim import resident_bytes
from tests.serving.http_api.requests import post, send
from tests.serving.http_attacks import MAX_BYTES, full

MAX_STALL_S, MAX_MEMORY = 0.2, 128 * 2**20
"""The longest step holds the interpreter lock for some milliseconds. The tests share the cores with others, and their
process with the client."""
ITEMS = {
    "empty objects": b"{}",
    "empty lists": b"[]",
    "lists for scalars": b'["a"]',
    "numbers": b"1000",
    "small numbers": b"0",
    "empty texts": b'""',
    "objects": b'{"a":0}',
    "nulls": b"null",
}
WHOLE = {
    "unknown fields": b"{" + b",".join(b'"x%x":0' % number for number in range(400_000)) + b"}",
    "deep lists": b"[" * MAX_BYTES,
    "deep objects": b'{"a":' * (MAX_BYTES // 5),
    "long key": b'{"' + b"a" * (MAX_BYTES - 6) + b'":1}',
    "white space": b'{"a":' + b" " * (MAX_BYTES - 10) + b"1}",
    "digits": b'{"a":' + b"1" * (MAX_BYTES - 10) + b"}",
    "quotes": b'"' * MAX_BYTES,
    "backslashes": b'{"a":"' + b"\\" * (MAX_BYTES - 10) + b'"}',
}
TEXTS = {
    "escapes": b"\\u4e2d" * (MAX_BYTES // 6 - 9),
    "surrogate pairs": b"\\ud83d\\ude00" * (MAX_BYTES // 12 - 9),
    "control characters": b"\\u0001" * (MAX_BYTES // 6 - 9),
    "one letter": b"a" * (MAX_BYTES - 99),
}


@pytest.fixture(scope="module")
def routes(server):
    """Path of each route that reads JSON -> names of its fields."""
    document = send(server, "GET", "/openapi.json").json()
    schemas = document["components"]["schemas"]
    found = {}
    for path, methods in document["paths"].items():
        if body := methods.get("post", {}).get("requestBody"):
            schema = body["content"]["application/json"]["schema"]
            kinds = [schemas[item["$ref"].rpartition("/")[2]] for item in schema.get("anyOf", [schema])]
            path = re.sub(r"\{version\}", "1", re.sub(r"\{(name|model)\}", "embedder", path))
            found[path] = sorted({name for kind in kinds for name in kind["properties"]})
    return found


@contextmanager
def watched(server):
    """Yield a function that returns the longest stall of the event loop, in seconds, and the growth of memory."""
    stalls, sizes, ended = [0.0], [resident_bytes()], threading.Event()
    before = sizes[0]

    def watch():
        while not ended.wait(0.003):
            started_s = time.monotonic()
            answered = threading.Event()
            server.loop.call_soon_threadsafe(answered.set)
            answered.wait()
            stalls.append(time.monotonic() - started_s)
            sizes.append(resident_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: (max(stalls), max(sizes) - before)
    finally:
        ended.set()
        thread.join()


def bodies(fields, rng):
    """Yield the name of a shape and a function that makes the body: each shape, that of values in one of the fields."""
    for name, body in WHOLE.items():
        yield name, partial(bytes, body)
    for shapes, make in (
        (ITEMS, lambda field, item: full(b'{"%b":[' % field, item, b"]}")),
        (TEXTS, lambda field, text: b'{"%b":"%b"}' % (field, text)),
    ):
        for name, item in shapes.items():
            for field in rng.sample(fields, min(1, len(fields))):
                yield f"{name} in {field}", partial(make, field.encode(), item)


def attack(server, path, body, headers):
    """Send a body up to three times, until it is handled as it should: other work on the machine also stalls it."""
    for _ in range(3):
        with watched(server) as worst:
            reply = post(server, path, body, **headers)
        stall_s, memory = worst()
        if stall_s < MAX_STALL_S and memory < MAX_MEMORY:
            break
    return reply, stall_s, memory


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_worst_bodies(every, server, routes):
    """Each is refused in one line, soon, or answered; the event loop goes on, and memory stays bounded."""
    rng, wrong = random.Random(0), []
    assert len(routes) > 25
    for path, fields in routes.items() if every else rng.sample(sorted(routes.items()), 10):
        found = list(bodies(fields, rng))
        for name, make in found if every else rng.sample(found, 1):
            body = make()
            for headers in ({}, {"content_encoding": "gzip"}) if every else ({},):
                sent = gzip.compress(body, 1) if headers else body
                reply, stall_s, memory = attack(server, path, sent, headers)
                if stall_s > MAX_STALL_S or memory > MAX_MEMORY:
                    wrong.append(f"{path}, {name} {headers}: {stall_s:.2f} s, {memory / 2**20:.0f} MiB")
                assert reply.status in {200, 400, 404, 413, 429}, (path, name, reply.data[:300])
                if reply.status != 200:
                    error = reply.json()["error"]
                    message = error if isinstance(error, str) else error["message"]
                    assert message
                    assert "\n" not in message
                    assert len(reply.data) < 50_000

    assert wrong == []


def test_memory_is_given_back(server):
    """Nothing of refused bodies stays, also not in cycles that wait for the garbage collector: a leak would make memory
    grow in each round, other work in this process only in some."""
    body = full(b'{"inputs":[', b'{"text":"a"}', b"]}")
    numbers = full(b'{"inputs":[', b"1", b"]}")
    for _ in range(6):
        before = resident_bytes()
        for _ in range(4):
            assert post(server, "/v1/classify", body).status == 400
            assert post(server, "/v2/models/embedder/infer", numbers).status == 400
        growth = resident_bytes() - before
        if growth < len(body):
            break

    assert growth < len(body)
    assert not server.server._budget.reserved_bytes
