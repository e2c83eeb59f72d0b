import asyncio
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from bertline._connection import channel_options
from bertline.v1 import encoder_pb2 as pb
from bertline.v1 import encoder_pb2_grpc
from serving.core.codec_pool import NUM_THREADS, SEQUENCE_BYTES, SMALL_BYTES
from serving.core.encoding import TextEncoder
from serving.core.models import Model
from serving.endpoints import tokenize as tokenize_module
from serving.grpc_api.interceptor import code_of_cancellation
from serving.grpc_api.listening import MAX_STREAMS
from tests.serving import http2
from tests.serving.conftest import serve
from tests.serving.http_api.requests import post, send
from tests.serving.open_inference.messages import infer_request, stub
from tests.serving.reliability import hold, wait_until

SERVICE = "bertline.v1.Encoder"
LONG = "the cat " * 15  # 32 tokens


@pytest.fixture
def slow(delayed, monkeypatch):
    """Server with one worker and batches of one text, whose queue holds an estimated 520 tokens."""
    monkeypatch.setattr("serving.core.latency_model._full_batch_seconds_per_token", lambda line, model: 0.01)
    with serve(delayed, workers=1, max_batch_tokens=32, max_queue_s=5.2, http_port=0) as running:
        yield running


def embed(server, *texts, **options):
    return server.stub.Embed.future(pb.EmbedRequest(texts=texts), **options)


def test_start(embedder):
    """The server and its service are SERVING once the models are loaded; until then, only health answers.

    Over HTTP, health is told by status and body.
    """
    with serve(embedder, load=False, http_port=0) as running:
        assert running.health() == running.health(SERVICE) == "NOT_SERVING"
        for call in (embed(running, "cat"), running.stub.ListModels.future(pb.ListModelsRequest())):
            assert call.code() is grpc.StatusCode.UNAVAILABLE
            assert "starting" in call.details()
        for path, status, body in (
            ("/health", 503, {"status": "the server is starting"}),
            ("/v2/health/live", 200, {"live": True}),
            ("/v2/health/ready", 503, {"ready": False}),
        ):
            reply = send(running, "GET", path)
            assert (reply.status, reply.json()) == (status, body)
        refused = post(running, "/v1/embed", {"texts": ["cat"]})
        assert (refused.status, refused.error["reason"]) == (503, "NOT_READY")
        asyncio.run_coroutine_threadsafe(running.server.load(), running.loop).result(10)
        assert running.health() == running.health(SERVICE) == "SERVING"


def test_health_while_busy(server):
    """Health checks are answered while a large request is encoded and decoded."""

    def longest_wait(texts):
        """Return the longest wait as a fraction of the request's time."""
        begun, slowest_s = time.perf_counter(), 0.0
        call = embed(server, *texts)
        while not call.done():
            started = time.perf_counter()
            server.health()
            slowest_s = max(slowest_s, time.perf_counter() - started)
        assert len(call.result().num_tokens) == len(texts)
        return slowest_s / (time.perf_counter() - begun)

    assert any(longest_wait([LONG] * 8000) < 1 / 3 for _ in range(3))


def test_reflection(server):
    """Reflection lists the service and knows its file."""
    stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
    ]
    listed, file = stub.ServerReflectionInfo(iter(requests))

    assert SERVICE in [service.name for service in listed.list_services_response.service]
    assert file.file_descriptor_response.file_descriptor_proto


def busy(server, num_texts):
    """Call that is being computed; most of it waits in the queue."""
    call = embed(server, *[LONG] * num_texts)
    server.wait_for("bertline_queue_tokens", 1)
    return call


def test_calls_of_a_connection_are_limited(server):
    """The number of concurrent calls of a connection is limited."""
    with http2.Connection(server.target) as connection:
        settings = next(payload for kind, payload in connection.frames() if kind == http2.SETTINGS)
    limits = dict(struct.iter_unpack(">HI", settings))

    assert limits[http2.MAX_CONCURRENT_STREAMS] == MAX_STREAMS


def test_full_queue(slow, held):
    """A request that does not fit is RESOURCE_EXHAUSTED immediately; waiting requests are answered."""
    call = busy(slow, 16)
    refused = embed(slow, *[LONG] * 10)

    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not call.done()
    assert int(dict(refused.trailing_metadata())["grpc-retry-pushback-ms"]) > 0
    held.set()
    assert len(embed(slow, "cat").result(10).num_tokens) == 1
    assert len(call.result(10).num_tokens) == 16
    assert slow.total("bertline_rejected_total", reason="queue_full") == 1
    assert slow.total("bertline_tokens_total") == 16 * 32 + 3


def test_request_larger_than_the_queue(slow):
    """A request that does not fit an empty queue is RESOURCE_EXHAUSTED, and the message states what to do."""
    for texts in ([LONG] * 17, ["cat"] * 200):  # the second is refused before it is encoded
        refused = embed(slow, *texts)

        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "send fewer inputs per call" in refused.details()
        assert dict(refused.trailing_metadata())["grpc-retry-pushback-ms"] == "-1"
    assert slow.total("bertline_rejected_total", reason="request_too_large") == 2
    assert slow.total("bertline_encode_seconds_count") == 1


def test_only_computed_tokens_count(slow):
    """Admission counts the tokens to compute after short, truncated and Tokenize requests."""
    for _ in range(20):
        embed(slow, "cat dog").result(10)

    def embed_cut(count):
        request = pb.EmbedRequest(texts=["the cat " * 4000] * count, truncate=True)
        return slow.stub.Embed.future(request)

    assert len(embed_cut(15).result(20).num_tokens) == 15
    rows = np.full((15, 32), 5, dtype=np.int64)
    assert stub(slow, "ModelInfer")(infer_request("embedder", input_ids=rows)).model_version == "1"
    tokens = slow.stub.Tokenize(pb.TokenizeRequest(inputs=[pb.TextInput(text="the cat " * 4000)] * 15))
    assert tokens.num_tokens[0] > 8000
    assert embed_cut(17).code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@contextmanager
def busy_threads(server):
    """Keep all tokenizing threads busy."""
    release = threading.Event()
    for _ in range(NUM_THREADS):
        waiting = server.server._service.codec_pool.run(None, SMALL_BYTES + 1, release.wait)
        asyncio.run_coroutine_threadsafe(waiting, server.loop)
    try:
        yield
    finally:
        release.set()


def test_refusals_do_not_wait_for_tokenization(slow):
    """Requests that are too large are refused while all tokenizing threads are busy."""
    with busy_threads(slow):
        refused = embed(slow, *["cat"] * SMALL_BYTES).exception(5)

    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_requests_refused_late_are_not_tokenized(slow, held):
    """If others have filled the queue since a request was admitted, its texts are not tokenized."""
    held.set()
    embed(slow, LONG).result(10)  # teaches the tokens per byte
    held.clear()
    with busy_threads(slow):
        late = embed(slow, *[LONG] * 10)
        waiting = slow.server._service.codec_pool._threads._work_queue
        wait_until(waiting.qsize, "it was not admitted")
        others = [embed(slow, *[LONG] * 7) for _ in range(2)]
        slow.wait_for("bertline_encode_seconds_count", 3)

    assert late.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    held.set()
    assert [len(call.result(10).num_tokens) for call in others] == [7, 7]
    assert slow.total("bertline_encode_seconds_count") == 3
    assert slow.total("bertline_rejected_total", reason="queue_full") == 1


def tokenize(server, **options):
    return server.stub.Tokenize.future(pb.TokenizeRequest(inputs=[pb.TextInput(text="the cat")]), **options)


def test_no_other_call_waits_for_tokenize(slow, monkeypatch):
    """Tokenize has a separate thread, and waits for no other call."""
    with busy_threads(slow):
        assert list(tokenize(slow).result(10).num_tokens) == [4]
    called, release = hold(monkeypatch, tokenize_module, "tokenize")
    waiting = [tokenize(slow) for _ in range(NUM_THREADS + 1)]
    assert called.wait(10)

    assert len(embed(slow, *[LONG] * 10).result(10).num_tokens) == 10
    release.set()
    assert [list(call.result(10).num_tokens) for call in waiting] == [[4]] * len(waiting)


def test_tokenize_is_refused_if_too_much_waits(delayed, monkeypatch):
    """Tokenize is refused with a retry time if too much waits, and later calls are answered."""
    monkeypatch.setattr("serving.core.service.TOKENIZE_BYTES", 2 * SEQUENCE_BYTES)
    with serve(delayed) as running:
        called, release = hold(monkeypatch, tokenize_module, "tokenize")
        waiting = [tokenize(running)]
        assert called.wait(10)
        waiting += [tokenize(running) for _ in range(2)]
        tokenizing = running.server._service.tokenize_pool
        wait_until(lambda: tokenizing._queue.size == 2 * SEQUENCE_BYTES, "one did not come")
        refused = tokenize(running)

        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert int(dict(refused.trailing_metadata())["grpc-retry-pushback-ms"]) > 0
        assert running.total("bertline_refused_total", reason="threads") == 1
        release.set()
        assert [list(call.result(10).num_tokens) for call in waiting] == [[4]] * 3
        assert list(tokenize(running).result(10).num_tokens) == [4]
        assert running.total("bertline_wait_seconds_count", threads="tokenize") == 4


def test_cancelled_call(slow, held):
    """A cancelled call leaves the queue, and its neighbours are answered."""
    first = busy(slow, 4)
    cancelled = embed(slow, *[LONG] * 10)  # longer than the first, which goes before it
    slow.wait_for("bertline_encode_seconds_count", 2)
    last = embed(slow, LONG)
    cancelled.cancel()
    slow.wait_for("bertline_cancelled_total", 10)
    held.set()

    np.testing.assert_array_equal(
        np.frombuffer(first.result(10).vectors, "<f4")[:8], np.frombuffer(last.result(10).vectors, "<f4")
    )
    slow.wait_for("grpc_server_handled_total", 1, grpc_code="Cancelled")
    assert slow.total("bertline_tokens_total") == 5 * 32


def test_cancelled_during_tokenization(slow, monkeypatch):
    """A call that is cancelled during tokenization is neither queued nor computed."""
    computing, compute = hold(monkeypatch, Model, "compute")
    first = embed(slow, LONG)

    assert computing.wait(10)
    encoding, encode = hold(monkeypatch, TextEncoder, "encode")
    cancelled = embed(slow, *[LONG] * 9)
    assert encoding.wait(10)
    cancelled.cancel()
    slow.wait_for("grpc_server_handled_total", 1, grpc_code="Cancelled")
    encode.set()

    slow.wait_for("bertline_cancelled_total", 9)
    assert slow.total("bertline_queue_sequences") == 0
    compute.set()
    assert len(first.result(10).num_tokens) == 1
    assert slow.total("bertline_tokens_total") == 32


def test_deadline_that_cannot_be_met(slow):
    """A deadline that cannot be met is DEADLINE_EXCEEDED immediately with a retry time, and nothing is computed."""
    call = embed(slow, *[LONG] * 8, timeout=2)

    assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "cannot be met: about 2.56 s are needed" in call.details()
    assert "grpc-retry-pushback-ms" in dict(call.trailing_metadata())
    assert slow.total("bertline_rejected_total", reason="deadline") == 1
    assert slow.total("bertline_tokens_total") == 0


@pytest.fixture
def patient(slow, monkeypatch):
    """Server that refuses nothing, and a client that is connected, perhaps with a delay between them."""
    monkeypatch.setattr("serving.core.latency_model._full_batch_seconds_per_token", lambda line, model: 1e-9)
    monkeypatch.setattr("serving.grpc_api.interceptor.ROUNDING_S", 0.3)
    grpc.channel_ready_future(slow.channel).result(60)
    return slow


def test_deadline(patient):
    """A call whose deadline passes is DEADLINE_EXCEEDED, and its waiting sequences are not computed."""
    slow = patient
    call = embed(slow, *[LONG] * 100, timeout=0.5)

    assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    slow.wait_for("grpc_server_handled_total", 1, grpc_code="DeadlineExceeded")
    assert slow.total("bertline_cancelled_total") > 0
    assert slow.total("bertline_queue_tokens") == 0


@pytest.mark.parametrize(
    ("given_s", "remaining_s", "expired"),
    [
        (None, None, False),
        (0.5, 0.2, False),
        (0.5, 0.02, True),
        (100.0, 1.0, True),
        (100.0, 2.0, False),
        (1.0, -1, True),
    ],
)
def test_client_deadline_is_recognised(given_s, remaining_s, expired):
    """The client's deadline is recognised although the server's is later by 1% and the transmission time."""
    code = code_of_cancellation(given_s, remaining_s)

    assert code is (grpc.StatusCode.DEADLINE_EXCEEDED if expired else grpc.StatusCode.CANCELLED)


def test_drain(slow, held):
    """While draining, health is NOT_SERVING at all ports, running calls finish and new ones are UNAVAILABLE."""
    watch = health_pb2_grpc.HealthStub(slow.channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
    states = [next(watch).status]
    call = busy(slow, 8)
    with ThreadPoolExecutor(1) as threads:
        posted = threads.submit(post, slow, "/v1/embed", {"texts": [LONG] * 7})
        slow.wait_for("bertline_encode_seconds_count", 2)
        stopping = slow.stop(60)
        states.append(next(watch).status)
        wait_until(lambda: send(slow, "GET", "/health").status == 503, "HTTP is healthy")
        assert slow.get()[::2] == (503, "the server is draining\n")

        assert embed(slow, LONG).code() is grpc.StatusCode.UNAVAILABLE
        held.set()
        assert len(call.result(60).num_tokens) == 8
        assert posted.result().status == 200
    stopping.result(60)
    assert states == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]


def test_calls_around_a_drain(embedder):
    """Calls around a drain are answered, UNAVAILABLE, or CANCELLED by gRPC as it stops; only answers are computed."""
    with serve(embedder) as running:
        calls = [embed(running, "the cat") for _ in range(200)]
        calls[20].result(10)
        stopping = running.stop(10)
        calls += [embed(running, "the cat") for _ in range(200)]
        stopping.result(15)
        codes = [call.code() for call in calls]
        labels = {"model": "embedder", "version": "1", "task": "embedding"}
        num_computed = running.server.metrics.registry.get_sample_value("bertline_queue_seconds_count", labels)

    assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    assert codes.count(grpc.StatusCode.OK) == num_computed


def test_drain_of_a_replica_loses_no_call(embedder):
    """While one of two servers drains under load, each call over a channel like our client's is answered."""
    options = channel_options(check_health=True).items()

    def ask(stub):
        return [stub.Embed.future(pb.EmbedRequest(texts=["the cat"]), timeout=30).code() for _ in range(60)]

    with (
        serve(embedder) as first,
        serve(embedder) as second,
        grpc.insecure_channel(f"ipv4:{first.target},{second.target}", options=list(options)) as channel,
        ThreadPoolExecutor(8) as threads,
    ):
        stub = encoder_pb2_grpc.EncoderStub(channel)
        asking = [threads.submit(ask, stub) for _ in range(8)]
        first.wait_for("grpc_server_started_total", 20)
        first.stop(10).result(15)
        codes = {code for future in asking for code in future.result(60)}

    assert codes == {grpc.StatusCode.OK}


def test_drain_runs_out_of_grace(slow):
    """Calls that have not finished by the end of the grace period are cancelled."""
    call = busy(slow, 16)
    slow.stop(0.05).result(10)

    assert call.code() in {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}
