"""Connections never use the file descriptors that the server itself needs."""

import re
import signal
import socket
import sys
import urllib.request
from contextlib import ExitStack

import grpc
import pytest

from bertline.v1 import encoder_pb2 as pb
from bertline.v1 import encoder_pb2_grpc
from serving.grpc_api.listening import channel_options
from serving.process.descriptors import MAX_SCRAPES, max_connections, max_scrapes, open_file_limit
from serving.settings import Settings
from tests.serving.models import write_model
from tests.serving.processes import listening, started
from tests.serving.reliability import open_channel, wait_until

TEXT = pb.EmbedRequest(texts=["cat"])


@pytest.mark.parametrize("allowed", [16, 64, 128, 256, 1024, 65_536, 2**30])
def test_a_quarter_of_the_descriptors_stays_free(allowed):
    """Connections and scrapes leave a quarter of the descriptors, or enough of them."""
    left = allowed - max_connections(allowed) - max_scrapes(allowed)

    assert left >= min(allowed // 4, 96)
    assert 1 <= max_scrapes(allowed) <= MAX_SCRAPES


@pytest.fixture
def limited(monkeypatch):
    """Function that limits the open files of servers to a soft and a hard limit."""

    def limit(soft, hard):
        script = f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"'
        monkeypatch.setattr(
            "tests.serving.processes.command",
            lambda *rest: ["sh", "-c", script, "sh", sys.executable, "-m", "serving", *map(str, rest)],
        )

    return limit


def test_the_limit_is_raised(tmp_path, limited):
    """The limit is raised as far as allowed, with one log line."""
    write_model(tmp_path)
    limited(64, 4096)
    with started(tmp_path) as (process, stub, _):
        assert stub.Embed(TEXT).dim == 8
        process.send_signal(signal.SIGTERM)
        log = process.communicate()[1]

    assert "raised the limit of open files from 64 to 4096" in log
    assert "WARNING" not in log


@pytest.mark.parametrize(("host", "addresses"), [("127.0.0.1", 1), ("both.example", 2), ("none.example", 0)])
def test_connections_of_all_addresses(monkeypatch, host, addresses):
    """gRPC counts connections for each address, so the limit is divided among them."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{number}", 0)) for number in range(addresses)]

    def resolve(*_, **__):
        if not found:
            raise socket.gaierror
        return found

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    options = dict(channel_options(Settings(host=host, max_connections=10**6)))

    assert options["grpc.max_allowed_incoming_connections"] == max_connections(open_file_limit()) // max(1, addresses)
    assert dict(channel_options(Settings(host=host, max_connections=10)))[
        "grpc.max_allowed_incoming_connections"
    ] == 10 // max(1, addresses)


def test_many_connections(tmp_path, limited):
    """Open connections are answered if there are too many, and excess ones are closed with a log line."""
    write_model(tmp_path)
    limited(64, 64)
    with listening(tmp_path, "--poll-s", 0.1) as (process, target, metrics), ExitStack() as stack:
        host, port = target.rsplit(":", 1)
        metrics_port = int(re.search(r":(\d+)/", metrics)[1])
        stub = encoder_pb2_grpc.EncoderStub(stack.enter_context(grpc.insecure_channel(target)))
        assert stub.Embed(TEXT).dim == 8
        with ExitStack() as crowd:
            for number in range(200):
                to = int(port) if number % 2 else metrics_port
                crowd.enter_context(socket.create_connection((host, to), timeout=10))
            other = encoder_pb2_grpc.EncoderStub(crowd.enter_context(open_channel(target)))
            with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
                other.Embed(TEXT, timeout=20)
            write_model(tmp_path, version="2")
            wait_until(lambda: stub.Embed(TEXT, timeout=20).model.version == "2", "it is not loaded")
        another = encoder_pb2_grpc.EncoderStub(stack.enter_context(open_channel(target)))
        assert another.Embed(TEXT, wait_for_ready=True, timeout=20).model.version == "2"
        wait_until(lambda: has_page(metrics), "there are no metrics")
        process.send_signal(signal.SIGTERM)
        log = process.communicate()[1]

    assert "the limit of `64` open files allows 24 connections" in log
    assert "escriptor limit reached" not in log
    assert "oo many open files" not in log


def has_page(address):
    try:
        with urllib.request.urlopen(address, timeout=10) as reply:
            return b"bertline_" in reply.read()
    except OSError:
        return False


def test_options_fit_into_gRPC_integers():
    """The largest settings give options that gRPC accepts: 32 bits."""
    settings = Settings(
        buffer_bytes=10**30,
        max_request_bytes=2**31 - 1,
        max_connections=2**31 - 1,
        keepalive_time_s=86_400,
        max_connection_age_s=86_400 * 365,
    )

    assert all(-(2**31) <= value < 2**31 for value in dict(channel_options(settings)).values())
