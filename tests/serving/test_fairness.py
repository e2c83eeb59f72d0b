"""Short queries during bulk load on a real server, and the priority class in the metadata of a call."""

import threading
import time
from contextlib import ExitStack, contextmanager

import grpc
import pytest

from bertline.v1 import encoder_pb2 as pb
from bertline.v1.encoder_pb2_grpc import EncoderStub
from tests.serving.conftest import serve
from tests.serving.reliability import open_channel, texts_of

BULK = (("priority", "bulk"),)


@contextmanager
def bulk_callers(target, count, *, in_flight, texts, metadata=()):
    """Run callers with `in_flight` requests each, on separate connections."""
    ended = threading.Event()
    request = pb.EmbedRequest(texts=texts, truncate=True)

    def send(stub):
        if not ended.is_set():
            stub.Embed.future(request, metadata=metadata, timeout=60).add_done_callback(lambda _: again(stub))

    def again(stub):
        threading.Thread(target=send, args=[stub]).start()

    with ExitStack() as stack:
        for _ in range(count):
            stub = EncoderStub(stack.enter_context(open_channel(target)))
            for _ in range(in_flight):
                send(stub)
        try:
            yield
        finally:
            ended.set()


def short_queries(target, num_queries, timeout_s):
    """Return statuses and seconds of queries that are sent one by one."""
    found = []
    with open_channel(target) as channel:
        stub = EncoderStub(channel)
        stub.Embed(pb.EmbedRequest(texts=["cat"]), timeout=30)
        for _ in range(num_queries):
            started = time.monotonic()
            code = stub.Embed.future(pb.EmbedRequest(texts=["the cat"]), timeout=timeout_s).code()
            found.append((code, time.monotonic() - started))
            time.sleep(0.02)
    return found


@pytest.mark.parametrize(("count", "in_flight", "metadata"), [(1, 8, BULK), (8, 2, ())])
def test_short_queries_beside_bulk_are_answered(delayed, count, in_flight, metadata):
    """Short queries are answered during bulk load, also with deadlines far below the queued work."""
    with (
        serve(delayed) as server,
        bulk_callers(server.target, count, in_flight=in_flight, texts=texts_of(30, 16), metadata=metadata),
    ):
        server.wait_for("bertline_queue_sequences", 16 * 4)
        found = short_queries(server.target, 20, timeout_s=1.0)
        waiting = server.total("bertline_queue_sequences")

    assert [code for code, _ in found] == [grpc.StatusCode.OK] * 20
    assert waiting > 16


@pytest.mark.parametrize("value", ["interactive", "bulk", "u=3, i", "u=1", "i", ""])
def test_known_priorities(server, value):
    """The server accepts both classes, and the values that proxies send in this header (RFC 9218)."""
    request = pb.EmbedRequest(texts=["cat"], model=pb.ModelRef(name="embedder"))

    assert server.stub.Embed.future(request, metadata=(("priority", value),), timeout=10).code() is grpc.StatusCode.OK


@pytest.mark.parametrize("value", ["Bulk", "low", "bulk,bulk", "1"])
def test_unknown_priorities_are_refused(server, value):
    """An unknown priority is refused, because a misspelt bulk class would compete with interactive calls."""
    call = server.stub.Embed.future(pb.EmbedRequest(texts=["cat"]), metadata=(("priority", value),), timeout=10)

    assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert call.details() == f"unknown `priority`: `{value}`; send `interactive` or `bulk`"
