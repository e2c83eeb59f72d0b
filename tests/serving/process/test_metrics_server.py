"""The metrics port: /healthz and the metrics."""

import asyncio
import urllib.error
import urllib.request

import grpc
import pytest

from bertline.v1 import encoder_pb2 as pb
from tests.serving.conftest import serve
from tests.serving.models import write_model

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


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    models = tmp_path_factory.mktemp("models")
    write_model(models)
    return models


def test_healthz_is_200_with_a_model(models):
    """A server with a model answers /healthz with 200, and /metrics is unchanged."""
    with serve(models) as running:
        assert get(running) == (200, PLAIN, "ok\n")
        assert "bertline_serving" in get(running, "/metrics")[2]


def test_other_paths_and_methods(models):
    """A misspelt path is 404, so that a probe of it fails; /healthz takes GET and HEAD only."""
    with serve(models, load=False) as running:
        for path in ("/", "/health", "/healthZ", "/livez", "/healthz/x", "/metricsx"):
            assert get(running, path) == (404, PLAIN, "no such page; see /metrics and /healthz\n")
        assert get(running, "/healthz/?x=1") == get(running)
        assert "bertline_serving" in get(running, "/metrics/?x=1")[2]
        assert get(running, method="HEAD") == (503, PLAIN, "")
        assert get(running, method="POST") == (405, PLAIN, "use GET or HEAD\n")


def test_before_the_models_are_loaded(models):
    """The port is open from the start and answers 503 until the models are loaded."""
    with serve(models, load=False) as running:
        assert get(running) == (503, PLAIN, "the server is starting\n")


def test_a_hanging_worker(models, monkeypatch):
    """While a batch hangs /healthz answers 503 with the reason, and 200 afterwards."""
    monkeypatch.setattr("serving.server.MONITOR_S", 0.01)
    problems = ["a batch takes longer than 60 s"]
    with serve(models) as running:
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
        call = running.stub.Embed.future(pb.EmbedRequest(texts=[LONG] * 40))
        running.wait_for("grpc_server_started_total", 1)
        stopping = running.stop(20)
        while get(running)[0] != 503:
            pass
        assert get(running) == (503, PLAIN, "the server is draining\n")
        assert call.code() is grpc.StatusCode.OK
        stopping.result(30)
