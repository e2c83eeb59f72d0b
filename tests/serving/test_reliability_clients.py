"""Clients that are killed, do not read or ping too often, and connections that end during calls."""

import asyncio
import threading
import time

import grpc
import pytest

from bertline.v1 import encoder_pb2 as pb
from bertline.v1 import encoder_pb2_grpc
from serving.core.models import Model
from tests.serving import http2
from tests.serving.conftest import serve
from tests.serving.models import write_model
from tests.serving.reliability import (
    check_counts,
    check_log,
    client_process,
    is_vector,
    open_channel,
    texts_of,
    vectors,
    wait_until,
)

EMBED = "/bertline.v1.Encoder/Embed"

MANY_CALLS = """
import sys, time
import grpc
from bertline.v1 import encoder_pb2 as pb, encoder_pb2_grpc
stub = encoder_pb2_grpc.EncoderStub(grpc.insecure_channel(sys.argv[1]))
calls = [stub.Embed.future(pb.EmbedRequest(texts=["the old " * 15])) for _ in range(int(sys.argv[2]))]
time.sleep(60)
"""


def test_a_client_is_killed(embedder, monkeypatch):
    """The waiting calls of a killed client are dropped, and other calls in the same batches are answered correctly."""
    texts, compute, permits = texts_of(30, 6), Model.compute, threading.Semaphore(len(texts_of(30, 6)))

    def permitted(*arguments):
        assert permits.acquire(timeout=60)
        return compute(*arguments)

    monkeypatch.setattr(Model, "compute", permitted)
    with serve(embedder, workers=1, max_batch_tokens=96, max_queue_s=1000) as server:
        alone = [vectors(server.stub.Embed(pb.EmbedRequest(texts=[text])))[0] for text in texts]
        with client_process(MANY_CALLS, server.target, 100) as client:
            server.wait_for("grpc_server_started_total", 100 + len(texts))
            calls = [server.stub.Embed.future(pb.EmbedRequest(texts=[text])) for text in texts]
            server.wait_for("bertline_encode_seconds_count", 100 + 2 * len(texts))
            permits.release(4)  # batches with sequences of both clients
            server.wait_for("bertline_batch_rows_count", len(texts) + 4)
            client.kill()
            server.wait_for("grpc_server_handled_total", 80, grpc_code="Cancelled")
            permits.release(100)
            assert all(is_vector(vectors(call.result(120)), one) for call, one in zip(calls, alone, strict=True))

        check_counts(server)
        assert server.total("grpc_server_started_total") == 100 + 2 * len(texts)
        dropped = server.total("bertline_cancelled_total")
        assert dropped > 80
        assert server.total("bertline_tokens_total") == 32 * (100 + 2 * len(texts) - dropped)


@pytest.fixture
def large_replies(tmp_path):
    """Directory of one model with replies of 2 MB for 2,000 texts."""
    write_model(tmp_path, hidden_size=256)
    return tmp_path


def test_a_client_that_does_not_read(large_replies, monkeypatch, caplog):
    """A client with many unread replies is refused, and others are served until the drain ends in time."""
    monkeypatch.setattr("serving.grpc_api.interceptor.MAX_UNREAD_BYTES", 3_000_000)
    request = pb.EmbedRequest(texts=texts_of(1, 2000))
    with serve(large_replies, max_queue_s=100) as server, http2.Connection(server.target) as connection:
        alone = vectors(server.stub.Embed(pb.EmbedRequest(texts=request.texts[-1:])))[0]
        for _ in range(2):
            connection.call(EMBED, request.SerializeToString())
        server.wait_for("grpc_server_handled_total", 3)
        computed, memory = server.total("bertline_tokens_total"), server.total("process_resident_memory_bytes")
        for count in range(15):  # one by one: HTTP/2 allows 64 KiB of unread data
            connection.call(EMBED, request.SerializeToString())
            server.wait_for("bertline_refused_total", count + 1, reason="unread_replies")

        check_counts(server)
        assert server.total("grpc_server_handled_total", grpc_code="ResourceExhausted") == 15
        assert server.total("bertline_tokens_total") == computed
        assert server.total("process_resident_memory_bytes") - memory < 50e6
        with open_channel(server.target, max_receive_message_length=-1) as channel:
            for _ in range(3):
                reply = encoder_pb2_grpc.EncoderStub(channel).Embed(request, timeout=10)
                assert is_vector(vectors(reply)[-1], alone)
        started = time.monotonic()
        server.stop(0.5).result(60)
        assert time.monotonic() - started < 10  # the system would keep trying for minutes
    check_log(caplog.records)


def num_tasks(server):
    async def count():
        return len(asyncio.all_tasks())

    return asyncio.run_coroutine_threadsafe(count(), server.loop).result(10)


def test_calls_are_freed_when_a_client_leaves_without_reading(large_replies):
    """Nothing of a client's calls remains after it leaves without reading."""
    with serve(large_replies) as server:
        server.stub.Embed(pb.EmbedRequest(texts=["cat"]))
        wait_until(lambda: num_tasks(server) < 10, "ended calls are still open")
        before = num_tasks(server)
        with http2.Connection(server.target) as connection:
            for _ in range(3):
                connection.call(EMBED, pb.EmbedRequest(texts=["cat"] * 2000).SerializeToString())
            server.wait_for("grpc_server_handled_total", 4)
            assert num_tasks(server) >= before + 3

        wait_until(lambda: num_tasks(server) <= before, "its calls are still there")
        check_counts(server)


def test_a_client_that_answers_no_ping(embedder, held):
    """The connection of a client that answers no ping is closed, and its calls leave the queue."""
    settings = {"keepalive_time_s": 0.3, "keepalive_timeout_s": 1}
    with serve(embedder, **settings) as server:
        with http2.Connection(server.target) as connection:
            for text in texts_of(30, 20):
                connection.call(EMBED, pb.EmbedRequest(texts=[text]).SerializeToString())
            server.wait_for("grpc_server_handled_total", 20, grpc_code="Cancelled")

        held.set()
        assert server.stub.Embed(pb.EmbedRequest(texts=["cat"])).num_tokens == [3]
        check_counts(server)
        assert server.total("bertline_cancelled_total") >= 10


def test_connections_that_grow_old(tmp_path):
    """Clients reconnect without losing a call when their connection reaches its maximum age."""
    write_model(tmp_path)
    texts = texts_of(5, 50)
    wrong, connections = [], []
    with serve(tmp_path, max_connection_age_s=0.1) as server:
        alone = [vectors(server.stub.Embed(pb.EmbedRequest(texts=[text])))[0] for text in texts]

        def call(number):
            with open_channel(server.target) as channel:
                channel.subscribe(lambda state: connections.append(state is grpc.ChannelConnectivity.READY))
                stub, end = encoder_pb2_grpc.EncoderStub(channel), time.monotonic() + 0.5
                while time.monotonic() < end or (sum(connections) <= 9 and time.monotonic() < end + 60):
                    calls = [stub.Embed.future(pb.EmbedRequest(texts=[text]), timeout=60) for text in texts[:20]]
                    found = [item.exception(60) or vectors(item.result())[0] for item in calls]
                    wrong.extend(
                        item
                        for item, expected in zip(found, alone, strict=False)
                        if isinstance(item, Exception) or not is_vector(item, expected)
                    )

        threads = [threading.Thread(target=call, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        check_counts(server)
        assert server.total("grpc_server_handled_total") == server.total("grpc_server_handled_total", grpc_code="OK")

    assert wrong == []
    assert sum(connections) > 3 * 3


def test_a_call_that_outlives_its_connection(delayed):
    """A call is cancelled at the end of its connection's grace period."""
    with serve(
        delayed,
        workers=1,
        max_batch_tokens=32,
        max_connection_age_s=0.1,
        max_connection_grace_s=0.1,
        max_queue_s=1000,
    ) as server:
        call = server.stub.Embed.future(pb.EmbedRequest(texts=texts_of(30, 100)))

        assert call.code() is grpc.StatusCode.UNAVAILABLE
        check_counts(server)
        assert server.total("bertline_cancelled_total") > 0


def test_pings_that_come_too_often(embedder):
    """A client that pings without pause is disconnected (ENHANCE_YOUR_CALM)."""
    with serve(embedder) as server, http2.Connection(server.target) as connection:
        for _ in range(5):
            connection.ping()
            time.sleep(0.01)
        (goodbye,) = [payload for kind, payload in connection.frames() if kind == http2.GOAWAY]

    assert int.from_bytes(goodbye[4:8], "big") == http2.ENHANCE_YOUR_CALM
    assert goodbye[8:] == b"too_many_pings"


def test_pings_that_are_permitted(embedder, monkeypatch):
    """A client that pings at most every MIN_PING_S stays connected, with or without calls."""
    monkeypatch.setattr("serving.grpc_api.listening.MIN_PING_S", 0.05)
    with serve(embedder) as server, http2.Connection(server.target) as connection:
        for _ in range(8):
            connection.ping()
            time.sleep(0.06)
        connection.call(EMBED, pb.EmbedRequest(texts=["cat"]).SerializeToString())
        kinds = list(kinds_until_a_reply(connection))

    assert kinds.count(http2.PING) >= 8
    assert http2.GOAWAY not in kinds


def kinds_until_a_reply(connection):
    """Return the types of frames up to those of a reply."""
    for kind, _ in connection.frames():
        yield kind
        if kind == http2.DATA:
            return
