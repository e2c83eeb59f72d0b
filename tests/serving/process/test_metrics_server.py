"""The metrics port: /healthz and the metrics."""

import asyncio
import urllib.error
import urllib.request

import grpc

from bertline.v1 import encoder_pb2 as pb
from tests.serving.conftest import serve

LONG = "the cat " * 15


def get(running, path="/healthz", method="GET"):
    """Return status, content type and text of a page."""
    url = f"http://127.0.0.1:{running.server.metrics_port}{path}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as reply:
            return reply.status, reply.headers["Content-Type"], reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.status, error.headers["Content-Type"], error.read().decode()


PLAIN = "text/plain; charset=utf-8"


def test_pages(embedder):
    """/healthz is 503 with the reason until the models are loaded, and takes GET and HEAD; misspelt paths are 404."""
    with serve(embedder, load=False) as running:
        assert get(running) == (503, PLAIN, "the server is starting\n")
        assert get(running, method="HEAD") == (503, PLAIN, "")
        assert get(running, method="POST") == (405, PLAIN, "use GET or HEAD\n")
        for path in ("/", "/health", "/healthZ", "/livez", "/healthz/x", "/metricsx"):
            assert get(running, path) == (404, PLAIN, "no such page; see /metrics and /healthz\n")
        asyncio.run_coroutine_threadsafe(running.server.load(), running.loop).result(10)
        assert get(running) == get(running, "/healthz/?x=1") == (200, PLAIN, "ok\n")
        assert "bertline_serving" in get(running, "/metrics/?x=1")[2]


def test_a_hanging_worker(embedder, monkeypatch):
    """While a batch hangs /healthz answers 503 with the reason, and 200 afterwards."""
    monkeypatch.setattr("serving.server.MONITOR_S", 0.01)
    problems = ["a batch takes longer than 60 s"]
    with serve(embedder) as running:
        monkeypatch.setattr(running.server._scheduler, "check_workers", lambda: "; ".join(problems))
        monitoring = asyncio.run_coroutine_threadsafe(running.server.monitor_workers(), running.loop)
        while get(running)[0] != 503:
            pass
        assert get(running) == (503, PLAIN, "a batch takes longer than 60 s\n")
        problems.clear()
        while get(running)[0] != 200:
            pass
        monitoring.cancel()


def test_draining(slow_models):
    """A draining server answers 503 while it finishes its calls."""
    with serve(slow_models, max_batch_tokens=32) as running:
        call = running.stub.Embed.future(pb.EmbedRequest(texts=[LONG] * 20))
        running.wait_for("grpc_server_started_total", 1)
        stopping = running.stop(20)
        while get(running)[0] != 503:
            pass
        assert get(running) == (503, PLAIN, "the server is draining\n")
        assert call.code() is grpc.StatusCode.OK
        stopping.result(30)
