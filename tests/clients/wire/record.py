"""Record what this release writes on the wire, for later releases: tests/clients/wire/<version>.json.

PYTHONPATH=. python -m tests.clients.wire.record

Run it once for a release, and keep the file: a client must understand the servers of the release before it.
"""

from __future__ import annotations

import base64
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc

from bertline import Client
from bertline.testing import FakeModel, FakeServer
from bertline.v1 import encoder_pb2 as pb
from tests.clients.wire.plain import plain

ASK = {"model": "fake", "version": "1", "truncate": True}
CALLS: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("embed", [["Ein Käuzchen.", "text"]], {}),
    ("embed", [["Ein Käuzchen.", "text"]], ASK | {"pooling": "mean", "normalize": True, "dimensions": 4}),
    ("embed", [["text"]], {"prompt_name": ""}),
    ("embed", [["text"]], {"input_type": "document"}),
    ("embed", [["text"]], {"format": "int8", "normalize": True}),
    ("embed", [["text"]], {"windows": True, "window_stride": 64, "normalize": False}),
    ("embed_sparse", [["Ein Käuzchen.", "text"]], ASK | {"top_k": 2, "return_tokens": True, "prompt_name": ""}),
    ("embed_sparse", [["text"]], {"input_type": "query"}),
    (
        "embed_tokens",
        [["Ein Käuzchen.", "text"]],
        ASK | {"input_type": "query", "prompt_name": "", "format": "float16", "return_offsets": True},
    ),
    ("embed_tokens", [["text."]], {}),
    ("classify", [["text", ["text", "pair"]]], ASK | {"top_k": 2}),
    ("regress", [["text", ["text", "pair"]]], ASK),
    ("choose", [[["It hoots.", "What is it?", ["an owl", "a cat"]], ["Which?", ["a", "b", "c"]]]], ASK),
    ("answer", [[["Where is Zürich?", ["🦉 In Zürich", "not here"]], ["Where?", "here"]]], ASK | {"top_k": 3}),
    (
        "rerank",
        [[["Where is Zürich?", ["🦉 In Zürich", "not here"]]]],
        ASK | {"top_n": 1, "label": "O", "raw_scores": True, "best_effort": True},
    ),
    ("tag", [["🦉 sits in Zürich", ["in", "Rome"]]], ASK | {"return_words": True}),
    ("fill_mask", [["The [MASK] sits in the [MASK]."]], ASK | {"top_k": 3, "targets": ["owl", "cat"]}),
    (
        "zero_shot",
        [["🦉 sits in Zürich", "text"], ["bird", "city"]],
        ASK | {"template": "about {}", "multi_label": True, "top_k": 1},
    ),
    ("tokenize", [["🦉 sits", ["text", "pair"]]], {"model": "fake", "version": "1"}),
    ("models", [], {}),
    ("model", ["fake", "1"], {}),
]
"""Methods of the client, with every option that a request may carry."""
MODELS = [
    FakeModel(labels=("O", "B-LOC"), manifest={"opset": 18}),
    FakeModel(version="2", state="failed", error="`models/fake/2` holds no manifest"),
]


def record() -> dict[str, Any]:
    """Return all calls, with their messages and results."""
    calls = []
    with FakeServer(MODELS) as server, Client(server.target) as client, grpc.insecure_channel(server.target) as channel:
        for method, arguments, options in CALLS:
            result = getattr(client, method)(*arguments, **options)
            last = server.calls[-1]
            raw = last.request.SerializeToString(deterministic=True)
            reply = channel.unary_unary(f"/bertline.v1.Encoder/{last.method}")(raw)
            messages = {"request": encoded(raw), "reply": encoded(reply)}
            call = {"method": method, "arguments": arguments, "options": options, "rpc": last.method}
            calls.append(call | messages | {"result": plain(result)})
    return {"descriptor": encoded(pb.DESCRIPTOR.serialized_pb), "calls": calls}


def encoded(raw: bytes) -> str:
    """Encode bytes as base64 text."""
    return base64.b64encode(raw).decode()


if __name__ == "__main__":
    path = Path(__file__).with_name(f"{version('bertline')}.json")
    path.write_text(json.dumps(record(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"wrote {path}")
