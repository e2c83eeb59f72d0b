"""deploy/nginx.conf in front of a real server: calls that pass, and calls that are stopped."""

import re
import shutil
import struct

import grpc
import pytest

from benchmarks.nginx import CONFIG, running_nginx
from bertline.v1 import encoder_pb2 as pb
from bertline.v1 import encoder_pb2_grpc
from tests.serving.attacks import EMBED, Sender
from tests.serving.conftest import serve
from tests.serving.models import write_model
from tests.serving.reliability import check_counts, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is Debian's package nginx-light"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Server of one model."""
    models = tmp_path_factory.mktemp("models")
    write_model(models)
    with serve(models) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(server, tmp_path_factory):
    """Address of nginx in front of the server."""
    changes = {"client_body_timeout 10s": "client_body_timeout 1s"}
    with running_nginx(tmp_path_factory.mktemp("nginx"), [server.target], changes) as target:
        yield target


def test_calls_pass(server, proxy):
    """Answers, statuses and trailers are the server's."""
    with grpc.insecure_channel(proxy) as channel:
        stub = encoder_pb2_grpc.EncoderStub(channel)
        assert stub.Embed(pb.EmbedRequest(texts=["cat"]), timeout=5).num_tokens == [3]
        large = pb.EmbedRequest(texts=["cat " * 1000] * 100, truncate=True)
        assert len(stub.Embed(large, timeout=20).num_tokens) == 100
        wrong = stub.Embed.future(pb.EmbedRequest(texts=[""]), timeout=5)

        assert wrong.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "x-request-id" in dict(wrong.trailing_metadata())


def test_messages_without_end(server, proxy):
    """nginx ends stalled requests after its own timeout, which is shorter than the server's."""
    with Sender(proxy) as sender:
        for _ in range(100):
            sender.send(sender.open(EMBED), struct.pack(">?I", False, 10**6) + bytes(900_000), timeout_s=0.01)
        wait_until(lambda: len(sender.ended) == 100 or sender.is_closed, "they go on", limit_s=10)
    check_counts(server)


def test_calls_of_an_address(server, proxy):
    """Calls above the limit for an address, over all its connections, do not reach the server."""
    before = server.total("grpc_server_started_total")
    senders = [Sender(proxy) for _ in range(4)]
    for sender in senders:
        for _ in range(100):
            sender.open(EMBED)
    wait_until(lambda: sum(len(sender.ended) for sender in senders) >= 144, "none is refused", limit_s=10)

    assert server.total("grpc_server_started_total") - before <= 256
    for sender in senders:
        sender.close()


def test_file_sizes():
    """Requests up to the server's default size pass nginx."""
    size = re.search(r"client_max_body_size (\d+)m;", CONFIG.read_text("utf-8"))[1]

    assert int(size) * 2**20 > 4 * 2**20
