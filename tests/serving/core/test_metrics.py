import asyncio
import random
import socket
import struct
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from itertools import pairwise, product

import grpc
import pytest

from bertline.v1 import encoder_pb2 as pb
from serving.endpoints.methods import METHODS, SERVICE
from serving.open_inference.service import METHODS as OPEN_INFERENCE_METHODS
from serving.open_inference.service import SERVICE as OPEN_INFERENCE
from serving.process import metrics_server
from tests.serving.conftest import serve, total
from tests.serving.models import write_model
from tests.serving.open_inference.messages import infer_request

SERVING, PLAIN = "bertline_serving", "text/plain; charset=utf-8"

EMBEDDER = {"model": "embedder", "version": "1", "task": "embedding"}


@pytest.fixture
def fresh(embedder):
    """Server without any calls."""
    with serve(embedder) as running:
        yield running


def test_series_exist_before_the_first_call(fresh):
    """All series exist before the first call, at zero."""
    samples = fresh.metrics()

    def value(name, **labels):
        return samples[name, tuple(sorted(labels.items()))]

    for service, method in [*product([SERVICE], METHODS), *product([OPEN_INFERENCE], OPEN_INFERENCE_METHODS)]:
        labels = {"grpc_service": service, "grpc_method": method, "grpc_type": "unary"}
        assert (
            value("grpc_server_started_total", **labels) == value("grpc_server_handling_seconds_count", **labels) == 0
        )
        for code in ("OK", "InvalidArgument", "ResourceExhausted", "Cancelled", "DeadlineExceeded"):
            assert value("grpc_server_handled_total", grpc_code=code, **labels) == 0
    for name in "queue_seconds inference_seconds encode_seconds decode_seconds batch_rows batch_tokens".split():
        assert value(f"bertline_{name}_count", **EMBEDDER) == 0
    for (
        name
    ) in "tokens_total padding_tokens_total truncated_total queue_sequences queue_tokens cancelled_total".split():
        assert value(f"bertline_{name}", **EMBEDDER) == 0
    for name in ("bytes", "replies", "evicted_total"):
        assert value(f"bertline_cache_{name}") == 0
    for name, label, values in (
        ("cache_requests_total", "result", ("hit", "miss")),
        ("rejected_total", "reason", ("queue_full", "request_too_large", "deadline")),
    ):
        assert [value(f"bertline_{name}", **EMBEDDER, **{label: item}) for item in values] == [0] * len(values)
    for threads in ("codec", "tokenize"):
        assert value("bertline_wait_seconds_count", threads=threads) == 0
    assert fresh.total("process_resident_memory_bytes") > 2**20
    assert fresh.total("bertline_model_info", precision="fp32", **EMBEDDER) == 1


def test_health(tmp_path):
    """Health series exist from the start, for the server, each model and each version, until the drain."""
    write_model(tmp_path, "tiny")
    write_model(tmp_path, "tiny", "2", files={"model.onnx": "0" * 64, "tokenizer.json": "0" * 64})
    with serve(tmp_path, load=False) as running:
        assert serving(running) == {SERVICE: 0, OPEN_INFERENCE: 0}
        asyncio.run_coroutine_threadsafe(running.server.load(), running.loop).result(10)
        models = {f"{SERVICE}/tiny": 1, f"{SERVICE}/tiny/1": 1, f"{SERVICE}/tiny/2": 0}
        assert serving(running) == {SERVICE: 1, OPEN_INFERENCE: 1} | models
        running.server._health.drain()
        assert serving(running) == dict.fromkeys([SERVICE, OPEN_INFERENCE, *models], 0)


def serving(running):
    """Return the values of `bertline_serving` by service."""
    return {dict(labels)["service"]: value for (name, labels), value in running.metrics().items() if name == SERVING}


def test_counters_equal_the_traffic(all_tasks):
    """Each call is counted once under its status: answered, refused, unparsable or for another task."""
    requests = [
        ("Embed", pb.EmbedRequest(texts=["cat", "the cat"]).SerializeToString()),
        ("Embed", pb.EmbedRequest(texts=[""]).SerializeToString()),
        ("Embed", pb.EmbedRequest(texts=["cat", "cat " * 31, "cat " * 99], truncate=True).SerializeToString()),
        ("Embed", pb.EmbedRequest(texts=["cat " * 31]).SerializeToString()),
        ("Embed", pb.EmbedRequest(texts=["cat"]).SerializeToString().replace(b"cat", b"\xff\xff\xff")),
        ("Classify", b"\xff"),
        ("Classify", pb.ClassifyRequest(model=pb.ModelRef(name="embedder")).SerializeToString()),
        ("Answer", pb.AnswerRequest(model=pb.ModelRef(name="nobody")).SerializeToString()),
        ("FillMask", pb.FillMaskRequest(texts=["[MASK]"]).SerializeToString()),
        ("Tag", pb.TagRequest(inputs=[pb.TagInput(text="cat")]).SerializeToString()),
        ("Tokenize", pb.TokenizeRequest(model=pb.ModelRef(name="reader")).SerializeToString()),
        ("GetModel", pb.GetModelRequest().SerializeToString()),
        ("ListModels", b""),
        ("ModelInfer", infer_request("embedder", text=["cat", "the cat"]).SerializeToString()),
        ("ModelInfer", infer_request("embedder", text=[""]).SerializeToString()),
        ("ModelInfer", infer_request("embedder", input_ids=[[2, 8, 9, 3]]).SerializeToString()),
    ]
    rng = random.Random(0)
    chosen = [rng.choice(requests) for _ in range(150)]
    with serve(all_tasks[0]) as running:
        method_of = running.channel.unary_unary
        services = dict.fromkeys(METHODS, SERVICE) | {"ModelInfer": OPEN_INFERENCE}
        calls = [method_of(f"/{services[method]}/{method}").future(raw) for method, raw in chosen]
        codes = [call.code() for call in calls]
        running.wait_for("grpc_server_handled_total", len(calls))
        found = running.metrics()

    for method in services:
        expected = Counter(code for (name, _), code in zip(chosen, codes, strict=True) if name == method)
        assert total(found, "grpc_server_started_total", grpc_method=method) == expected.total()
        assert total(found, "grpc_server_handling_seconds_count", grpc_method=method) == expected.total()
        assert total(found, "grpc_server_handled_total", grpc_method=method) == expected.total()
        for code, name in [
            (grpc.StatusCode.OK, "OK"),
            (grpc.StatusCode.INVALID_ARGUMENT, "InvalidArgument"),
            (grpc.StatusCode.NOT_FOUND, "NotFound"),
        ]:
            assert total(found, "grpc_server_handled_total", grpc_method=method, grpc_code=name) == expected[code]
    short, cut = chosen.count(requests[0]) + chosen.count(requests[-3]), chosen.count(requests[2])
    rows = chosen.count(requests[-1])
    assert total(found, "bertline_tokens_total", **EMBEDDER) == short * 7 + cut * (3 + 32 + 32) + rows * 4
    assert total(found, "bertline_queue_seconds_count", **EMBEDDER) == short * 2 + cut * 3 + rows
    assert total(found, "bertline_truncated_total", **EMBEDDER) == total(found, "bertline_truncated_total") == cut * 2
    assert total(found, "bertline_encode_seconds_count", **EMBEDDER) == short + cut
    assert total(found, "bertline_decode_seconds_count", **EMBEDDER) == short + cut + rows
    assert total(found, "bertline_cancelled_total") == total(found, "bertline_rejected_total") == 0
    assert total(found, "bertline_queue_sequences") == total(found, "bertline_queue_tokens") == 0


def test_counters_after_cancelling(fresh):
    """Calls that are cancelled at any moment are counted once."""
    calls = [fresh.stub.Embed.future(pb.EmbedRequest(texts=["cat"] * 50)) for _ in range(60)]
    for call in calls[::2]:
        call.cancel()
    for call in calls[1::2]:
        assert len(call.result(10).num_tokens) == 50
    started = fresh.total("grpc_server_started_total")

    fresh.wait_for("grpc_server_handled_total", started)

    assert 30 <= started <= 60
    assert fresh.total("bertline_queue_tokens") == 0


def test_metrics_follow_the_conventions(fresh):
    """The page follows Prometheus' conventions: help texts, `_total` on counters, base units, ordered buckets."""
    lines = fresh.page().splitlines()
    types = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}
    helped = {line.split()[2] for line in lines if line.startswith("# HELP") and len(line.split()) > 3}

    assert types.keys() == helped
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in types.items())
    assert not [name for name in types if "_ms" in name or "_created" in name]
    bounds = [line.split('le="')[1].split('"')[0] for line in lines if "bertline_batch_rows_bucket" in line]
    first = [float(bound) for bound in bounds[: bounds.index("+Inf")]]
    assert all(low < high for low, high in pairwise(first))


def test_pages(embedder):
    """/healthz is 503 with the reason until the models are loaded, and takes GET and HEAD; misspelt paths are 404."""
    with serve(embedder, load=False) as running:
        assert running.get() == (503, PLAIN, "the server is starting\n")
        assert running.get(method="HEAD") == (503, PLAIN, "")
        assert running.get(method="POST") == (405, PLAIN, "use GET or HEAD\n")
        for path in ("/", "/health", "/healthZ", "/livez", "/healthz/x", "/metricsx"):
            assert running.get(path) == (404, PLAIN, "no such page; see /metrics and /healthz\n")
        asyncio.run_coroutine_threadsafe(running.server.load(), running.loop).result(10)
        assert running.get() == running.get("/healthz/?x=1") == (200, PLAIN, "ok\n")
        assert "bertline_serving" in running.get("/metrics/?x=1")[2]


def test_idle_connections(embedder, monkeypatch, capfd):
    """Silent connections to the metrics port delay no scrape, and are closed without a log line."""
    monkeypatch.setattr(metrics_server._Handler, "timeout", 0.3)
    with serve(embedder) as running, ExitStack() as stack:
        address = "127.0.0.1", running.server.metrics_port
        started = time.monotonic()
        idle = [stack.enter_context(socket.create_connection(address, timeout=5)) for _ in range(30)]
        for number in range(5):
            with socket.create_connection(address) as leaving:
                leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                leaving.sendall(b"GET /metrics" + b"/" * 70_000 * (number % 2) + b" HTTP/1.1\r\n\r\n")

        assert "bertline_serving" in running.page()
        assert time.monotonic() - started < 5  # with a full listen backlog, each would take a second
        assert [connection.recv(1) for connection in idle] == [b""] * 30
    assert "Traceback" not in capfd.readouterr().err


def test_slow_connections(embedder, monkeypatch):
    """Many clients that send a byte now and then delay scrapes only briefly."""
    monkeypatch.setattr(metrics_server, "CONNECTION_S", 0.3)
    with serve(embedder) as running, ExitStack() as stack:
        before = threading.active_count()
        address = "127.0.0.1", running.server.metrics_port
        slow = [stack.enter_context(socket.create_connection(address, timeout=5)) for _ in range(100)]
        end = time.monotonic() + 1
        while time.monotonic() < end:
            for connection in slow:
                with suppress(OSError):
                    connection.send(b"G")
            time.sleep(0.05)
        monkeypatch.setattr(metrics_server, "CONNECTION_S", 10.0)

        assert "bertline_serving" in running.page()
        assert threading.active_count() <= before + 1
        assert [_is_closed(connection) for connection in slow] == [True] * 100


def _is_closed(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
