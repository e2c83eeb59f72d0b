"""Real servers on free ports, in a thread of the test process."""

import asyncio
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import grpc
import pytest
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from bertline.v1 import encoder_pb2_grpc
from serving.core.models import Model
from serving.server import Server
from serving.settings import Settings
from tests.serving.certificates import make_authority
from tests.serving.models import write_model
from tests.serving.reliability import hold

SPACE = "0123456789abcdef"
"""Space of the vectors of `embedder`."""


class Running:
    """Server under test with a channel and a stub."""

    def __init__(self, server, loop):
        self.server = server
        self.loop = loop
        self.target = f"127.0.0.1:{server.port}"
        self.channel = grpc.insecure_channel(self.target)
        self.stub = encoder_pb2_grpc.EncoderStub(self.channel)

    def stop(self, grace_s):
        """Start to stop the server; return a future of the end."""
        return asyncio.run_coroutine_threadsafe(self.server.stop(grace_s), self.loop)

    def get(self, path="/healthz", method="GET"):
        """Return status, content type and text of a page at the metrics port."""
        url = f"http://127.0.0.1:{self.server.metrics_port}{path}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as reply:
                return reply.status, reply.headers["Content-Type"], reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.status, error.headers["Content-Type"], error.read().decode()

    def health(self, service=""):
        """Return the name of the health status of a service."""
        request = health_pb2.HealthCheckRequest(service=service)
        status = health_pb2_grpc.HealthStub(self.channel).Check(request).status
        return health_pb2.HealthCheckResponse.ServingStatus.Name(status)

    def page(self):
        """Return the text of /metrics."""
        return self.get("/metrics")[2]

    def metrics(self, name=""):
        """Return the samples whose names begin with `name`: (name, sorted labels) -> value."""
        lines = (line for line in self.page().splitlines() if line.startswith(name))
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families("\n".join([*lines, ""]))
            for sample in family.samples
        }

    def total(self, name, **labels):
        """Return the sum of the samples with a name and these labels."""
        return total(self.metrics(name), name, **labels)

    def wait_for(self, name, minimum, **labels):
        """Wait until the sum of the samples of a name reaches a minimum."""
        end = time.monotonic() + 60
        while self.total(name, **labels) < minimum:
            assert time.monotonic() < end, f"{name} {labels} stays below {minimum}"
            time.sleep(0.005)


def total(metrics, name, **labels):
    """Return the sum of the samples with a name and these labels; `metrics` is what `Running.metrics` returns."""
    wanted = set(labels.items())
    return sum(value for (found, having), value in metrics.items() if found == name and wanted <= set(having))


@contextmanager
def serve(models_dir, *, load=True, **settings):
    """Serve a directory of models on free ports."""
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

    async def make():
        values = {"models_dir": models_dir, "port": 0, "metrics_port": 0, "workers": 2} | settings
        return Server(Settings(**values))

    try:
        server = run(make())
        try:
            run(server.start())
            if load:
                run(server.load())
            running = Running(server, loop)
            try:
                yield running
            finally:
                running.channel.close()
        finally:
            run(server.stop(0))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="session")
def all_tasks(tmp_path_factory):
    """Directory with a model of each task, and their references by name."""
    models = tmp_path_factory.mktemp("models")
    references = {
        "embedder": write_model(models, "embedder", task="embedding", space=SPACE),
        "classifier": write_model(models, "classifier", task="classification", seed=1),
        "reader": write_model(models, "reader", task="spans", seed=2),
        "filler": write_model(models, "filler", task="masked-lm", seed=3),
        "scorer": write_model(models, "scorer", task="regression", seed=4),
        "chooser": write_model(models, "chooser", task="multiple-choice", seed=5),
        "tagger": write_model(models, "tagger", task="tagging", seed=6),
        "sparse": write_model(models, "sparse", task="sparse-embedding", seed=7),
        "tokens": write_model(models, "tokens", task="token-embedding", seed=8),
    }
    return models, references


@pytest.fixture(scope="session")
def embedder(tmp_path_factory):
    """Directory with one model, which starts sooner than all of them."""
    models = tmp_path_factory.mktemp("embedder")
    write_model(models, "embedder", task="embedding")
    return models


@pytest.fixture(scope="session")
def server(all_tasks):
    """Server of all tasks over gRPC and HTTP, for tests that change nothing of it."""
    with serve(all_tasks[0], http_port=0) as running:
        yield running


@pytest.fixture(scope="session")
def references(all_tasks):
    """References by model name."""
    return all_tasks[1]


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    return make_authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="session")
def stranger(tmp_path_factory):
    """Authority that nobody trusts."""
    return make_authority(tmp_path_factory.mktemp("tls") / "other")


@pytest.fixture(scope="session")
def slow_models(tmp_path_factory):
    """Directory with one model that computes for tens of milliseconds on a text of 32 tokens."""
    models = tmp_path_factory.mktemp("slow")
    write_model(models, "slow", hidden_size=512, passes=150)
    return models


@pytest.fixture
def delayed(embedder, monkeypatch):
    """Directory with one model, each batch of which takes 20 ms longer in the server under test."""
    compute = Model.compute

    def slow(*arguments):
        time.sleep(0.02)
        return compute(*arguments)

    monkeypatch.setattr(Model, "compute", slow)
    return embedder


@pytest.fixture
def held(monkeypatch):
    """Event that releases the batches of the server under test, which wait for it."""
    _, release = hold(monkeypatch, Model, "compute")
    yield release
    release.set()
