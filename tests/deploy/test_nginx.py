"""deploy/nginx.conf in front of a real server: calls that pass, and calls that are stopped."""

import http.client
import json
import re
import shutil
import socket
import struct

import grpc
import pytest

from benchmarks.nginx import CONFIG, running_nginx
from bertline.v1 import encoder_pb2 as pb
from bertline.v1 import encoder_pb2_grpc
from tests.serving.attacks import EMBED, Sender
from tests.serving.conftest import serve
from tests.serving.http_api.requests import port_of
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
    with serve(models, http_port=0, http_hosts=("bertline.example.org",)) as running:
        yield running


@pytest.fixture(scope="module")
def nginx(server, tmp_path_factory):
    """Addresses of nginx."""
    changes = {
        "client_body_timeout 10s": "client_body_timeout 1s",
        "server 127.0.0.1:8080;": f"server 127.0.0.1:{port_of(server)};",
    }
    with running_nginx(tmp_path_factory.mktemp("nginx"), [server.target], changes) as addresses:
        yield addresses


@pytest.fixture
def proxy(nginx):
    """Address of nginx for gRPC."""
    return nginx.grpc


@pytest.fixture
def ask(nginx):
    """Function that sends requests on one connection through nginx, and returns status and body."""
    connection = http.client.HTTPConnection(nginx.http, timeout=20)

    def send(method, path, body=None, **headers):
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        reply = connection.getresponse()
        return reply.status, reply.read()

    yield send
    connection.close()


def embed(texts):
    return json.dumps({"model": "tiny", "input": texts})


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


def test_requests_pass(ask):
    """Answers, errors and the page are the server's, also for large bodies; the connection is kept."""
    status, body = ask("POST", "/v1/embeddings", embed(["cat"]), content_type="application/json")
    large, _ = ask("POST", "/v1/embed", json.dumps({"texts": ["cat " * 1000] * 100, "truncate": True}))

    assert (status, len(json.loads(body)["data"])) == (200, 1)
    assert large == 200
    assert ask("POST", "/v1/embeddings", "{")[0] == 400
    assert b"<!doctype html>" in ask("GET", "/")[1].lower()


def test_hosts_and_origins(ask, nginx):
    """The server sees the name that a browser asks for: its own page may call it, another page or name may not."""

    def status(**headers):
        return ask("POST", "/v1/embeddings", embed(["cat"]), content_type="application/json", **headers)[0]

    assert status(origin=f"http://{nginx.http}", sec_fetch_site="same-origin") == 200
    assert status(origin=f"http://{nginx.http}") == 200
    assert status(origin="https://bertline.example.org", host="bertline.example.org") == 200
    assert status(origin="https://evil.example", sec_fetch_site="cross-site") == 403
    assert status(origin="https://evil.example") == 403
    assert status(host="evil.example") == 403


def test_large_bodies(ask, server):
    """The server refuses bodies above its limit; those above nginx's limit do not reach it."""
    before = server.total("http_server_started_total")
    status, body = ask("POST", "/v1/embed", b"a" * (4 * 2**20 + 1))

    assert (status, json.loads(body)["error"]["reason"]) == (413, "MESSAGE_TOO_LARGE")
    assert ask("POST", "/v1/embed", b"a" * (6 * 2**20))[0] == 413
    assert server.total("http_server_started_total") == before + 1


def test_bodies_without_end(nginx, server):
    """nginx ends stalled requests before the server sees them."""
    before = server.total("http_server_started_total")
    with socket.create_connection(nginx.http.split(":"), timeout=5) as connection:
        connection.sendall(b"POST /v1/embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{")

        assert connection.recv(1000) == b""
    assert server.total("http_server_started_total") == before


def test_file_sizes():
    """Requests up to the server's default size pass nginx."""
    size = re.search(r"client_max_body_size (\d+)m;", CONFIG.read_text("utf-8"))[1]

    assert int(size) * 2**20 > 4 * 2**20
