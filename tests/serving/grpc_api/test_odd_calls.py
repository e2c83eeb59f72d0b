"""Calls with headers or messages that no gRPC client sends."""

import asyncio
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc
import pytest

from bertline.v1 import encoder_pb2 as pb
from tests.serving.attacks import CHECK, EMBED, WATCH, Sender
from tests.serving.conftest import serve
from tests.serving.reliability import check_counts, open_channel, wait_until

CAT = pb.EmbedRequest(texts=["cat"], model=pb.ModelRef(name="embedder"))
MESSAGE = CAT.SerializeToString()
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
ODD = {
    "no UTF-8": b"/a\xff\xfe/b",
    "half a character": "/bertline.v1.Encoder/Émbed".encode()[:23],
    "empty": b"",
    "a slash": b"/",
    "no slash": b"Embed",
    "slashes": b"/" * 3000,
    "a query": EMBED.encode() + b"?a=b",
    "dots": b"/../../etc/passwd",
    "long": b"/" + b"a" * 6000,
    "another script": "/服务/方法".encode(),
}
PATHS = (EMBED, CHECK, "/no/such")
FIELDS = [
    "x-request-id",
    "grpc-timeout",
    "authorization",
    "traceparent",
    "priority",
    "max-reply-bytes",
    "x-some",
    "x-some-bin",
]
FIELDS += ["grpc-encoding", "grpc-accept-encoding", "user-agent", "content-type", "te", "host", "grpc-trace-bin"]
VALUES = [b"\xff\xfe", b"", b"=" * 300, b"99999999999999H", b"-1S", "值".encode(), b"%ff%00", b"u=3, i"]


def speak(target, *calls):
    """Make odd calls with a message each on one connection, until all of them or the connection have ended."""
    message = struct.pack(">?I", False, len(MESSAGE)) + MESSAGE
    with Sender(target) as sender, suppress(OSError):
        streams = [sender.open(*call) for call in calls]
        for stream in streams:
            sender.send(stream, message, last=True, timeout_s=1)
        wait_until(lambda: sender.is_closed or sender.ended.keys() >= set(streams), "a call does not end", limit_s=5)


def check_answers(server):
    """Check that a connected and a new client are answered, and that no call is left."""
    assert server.stub.Embed(CAT, timeout=10).num_tokens == [3]
    with open_channel(server.target) as channel:
        assert channel.unary_unary(EMBED)(MESSAGE, timeout=10)
    check_counts(server)


@pytest.mark.parametrize("path", ODD.values(), ids=ODD)
def test_malformed_paths_do_not_end_the_server(server, path):
    """Paths that are not UTF-8 do not end the server, unlike with gRPC 1.84 and 1.85."""
    call = server.stub.Embed.future(CAT, timeout=10)
    speak(server.target, (path, []))

    assert call.result().num_tokens == [3]
    check_answers(server)


def test_malformed_metadata_does_not_end_the_server(server):
    """Header fields with any bytes do not end the server."""
    fields = [(name, value) for name in FIELDS for value in VALUES]
    with ThreadPoolExecutor(4 * len(VALUES)) as pool:
        list(pool.map(lambda field: speak(server.target, *[(path, [field]) for path in PATHS]), fields))

    check_answers(server)


def test_long_paths_are_shortened(server):
    """Statuses with long paths are shortened to fit into clients' limits."""
    with pytest.raises(grpc.RpcError) as caught:
        server.channel.unary_unary("/" + "é" * 1500)(b"", timeout=10)

    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert len(caught.value.details().encode()) <= 1024


@pytest.mark.parametrize("path", [CHECK, WATCH, REFLECTION, EMBED])
def test_invalid_messages(server, path, caplog):
    """Invalid messages are INVALID_ARGUMENT, and gRPC logs nothing."""
    method = server.channel.stream_stream(path)
    with pytest.raises(grpc.RpcError) as caught:
        list(method(iter([b"\xff" * 20]), timeout=10))

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not [record for record in caplog.records if record.name.startswith("grpc")]
    check_answers(server)


def test_malformed_calls_log_one_line_per_second(server, caplog):
    """gRPC's tracebacks for odd calls become one line per second, with the number of omitted ones."""
    odd = (EMBED, [("x-request-id", b"\xff")])
    started = time.monotonic()
    for _ in range(5):
        speak(server.target, *[odd] * 20)
    time.sleep(1.1)
    speak(server.target, odd)
    records = [record for record in caplog.records if record.name.startswith("grpc")]

    assert 2 <= len(records) <= time.monotonic() - started + 2
    assert sum(getattr(record, "fields", {}).get("omitted", 0) for record in records) > 50


def test_a_server_that_grpc_has_ended(all_tasks):
    """The process ends when gRPC has ended by itself."""
    with serve(all_tasks[0]) as running:
        watching = asyncio.run_coroutine_threadsafe(running.server.monitor_workers(), running.loop)
        asyncio.run_coroutine_threadsafe(running.server._grpc.stop(0), running.loop).result(10)
        with pytest.raises(RuntimeError, match="gRPC accepts no more calls"):
            watching.result(10)
