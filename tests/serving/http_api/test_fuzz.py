"""Damaged requests: every reply is a proper status in the route's own shape, and nothing stays behind."""

import copy
import http.client
import json
import logging
import random
import socket

import pytest

from tests.serving.http_api.requests import port_of, send

REQUESTS = {
    "/v1/embeddings": {
        "model": "embedder",
        "input": ["the cat", "a dog"],
        "dimensions": 4,
        "encoding_format": "base64",
    },
    "/v1/embed": {"model": {"name": "embedder"}, "texts": ["the cat"], "truncate": True, "windows": False},
    "/v1/embed-sparse": {"texts": ["the cat"], "top_k": 5},
    "/v1/embed-tokens": {"texts": ["the cat"]},
    "/v1/classify": {"inputs": [{"text": "the cat", "text_pair": "a dog"}], "top_k": 2},
    "/v1/regress": {"inputs": [{"text": "the cat"}]},
    "/v1/choose": {"inputs": [{"question": "the", "choices": ["cat", "dog"]}]},
    "/v1/answer": {"inputs": [{"question": "the cat", "contexts": ["a dog", "the cat sees"]}], "top_k": 2},
    "/v1/rerank": {"model": "scorer", "query": "who", "documents": ["the cat", {"text": "a dog"}], "top_n": 1},
    "/v2/rerank": {"model": "reader", "query": "who", "documents": ["the cat", "a dog"]},
    "/rerank": {
        "query": "who",
        "texts": ["the cat", "a dog"],
        "return_text": True,
        "raw_scores": True,
        "model": "scorer",
    },
    "/v1/tag": {"inputs": [{"text": "the cat"}, {"words": ["the", "cat"]}]},
    "/v1/fill-mask": {"texts": ["the [MASK]"], "targets": ["cat"], "top_k": 2},
    "/v1/zero-shot": {"texts": ["the cat"], "labels": ["cat", "dog"], "template": "the {}", "top_k": 1},
    "/v1/tokenize": {"model": {"name": "embedder"}, "inputs": [{"text": "the cat"}]},
    "/v1/list-models": {},
    "/v1/get-model": {"model": {"name": "embedder"}},
    "/embed": {"inputs": ["the cat"], "normalize": True, "truncate": True},
    "/embed_sparse": {"inputs": "the cat"},
    "/embed_all": {"inputs": ["the cat"]},
    "/": {"inputs": "the cat"},
    "/tokenize": {"inputs": ["the cat"]},
    "/predict": {"inputs": [["the cat", "a dog"]], "truncate": True},
    "/decode": {"ids": [[2, 8, 3]], "skip_special_tokens": True},
    "/v2/models/embedder/infer": {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["the cat"]}]},
}
ODD = [
    None,
    True,
    -1,
    0,
    2**63,
    10**40,
    1.5,
    "",
    " ",
    "\0",
    "a" * 300,
    [],
    {},
    [[]],
    [None],
    {"a": 1},
    "[MASK]",
    "e\u0301",
]
ERRORS = {400, 404, 405, 408, 413, 415, 429, 431, 504}


def places(value, path=()):
    """Yield the path of every value inside a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def odd_value(rng, body):
    """Return a body in which one value is odd, missing, or under another name."""
    body = copy.deepcopy(body)
    path = rng.choice(list(places(body)))
    if not path:
        return rng.choice(ODD)
    *before, last = path
    target = body
    for key in before:
        target = target[key]
    kind = rng.randrange(4)
    if kind == 0:
        del target[last]
    elif kind == 1 and isinstance(target, dict):
        target[f"{last}s"] = target.pop(last)
    elif kind == 2 and isinstance(target[last], list):
        target[last] = target[last] * rng.choice([2, 50])
    else:
        target[last] = rng.choice(ODD)
    return body


def damaged(rng, data):
    """Return bytes with some of them changed, doubled, left out or cut off."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        place = rng.randrange(len(data))
        kind = rng.randrange(4)
        if kind == 0:
            data[place] = rng.randrange(256)
        elif kind == 1:
            data[place:place] = data[place : place + rng.randrange(30)]
        elif kind == 2:
            del data[place : place + rng.randrange(1, 5)]
        else:
            del data[max(1, place) :]
        if not data:
            data += b"{"
    return bytes(data)


def check_reply(path, status, data):
    """Check that a reply is a success, or an error in the shape of its route."""
    values = json.loads(data)
    if status == 200:
        return
    assert status in ERRORS, (path, status, data)
    error = values["error"]
    text = error if isinstance(error, str) else error["message"]
    assert text
    assert "\n" not in text


def ask_all(server, rng, count):
    """Send JSON requests with odd values, over connections that stay open."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=60)
    for _ in range(count):
        path = rng.choice(list(REQUESTS))
        body = json.dumps(odd_value(rng, REQUESTS[path])).encode()
        if rng.random() < 0.3:
            body = damaged(rng, body)
        connection.request("POST", path, body, {"content-type": "application/json"})
        reply = connection.getresponse()
        check_reply(path, reply.status, reply.read())
    connection.close()


def send_damaged(server, rng, count):
    """Send damaged requests over separate connections. The client ends its side, so that none stays open."""
    for _ in range(count):
        path = rng.choice(list(REQUESTS))
        body = json.dumps(REQUESTS[path])
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port_of(server)), timeout=60) as connection:
            connection.sendall(damaged(rng, f"{head}{body}".encode()))
            connection.settimeout(0.02)
            try:
                found = connection.recv(65536)
            except (TimeoutError, ConnectionError):  # it waits for the rest
                found = b""
            assert not found or found.startswith(b"HTTP/1.1 "), found
            assert not found.startswith(b"HTTP/1.1 5") or found.startswith((b"HTTP/1.1 504", b"HTTP/1.1 505")), found


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_damaged_requests(count, server, caplog):
    """No request causes an unexpected error, and the server goes on."""
    rng = random.Random(count)
    with caplog.at_level(logging.ERROR):
        ask_all(server, rng, count)
        send_damaged(server, rng, count // 4)

    assert [record.getMessage() for record in caplog.records] == []
    assert send(server, "GET", "/health").status == 200
