import os
import socket

import pytest

from serving.grpc_api.connections import close_connections


def open_files():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def pair():
    """Open a connection on loopback: both ends."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
    ):
        server, _ = listening.accept()
        with server:
            yield server, client


def test_the_connection_of_a_peer_is_closed(pair):
    """The other end reads end of file; no other connection is touched."""
    _, client = pair
    host, port = client.getsockname()

    close_connections({f"ipv4:{host}:{port}": "a test", "ipv4:192.0.2.1:1": "another"})
    client.settimeout(5)

    assert client.recv(1) == b""


@pytest.mark.parametrize("peer", ["ipv4:127.0.0.1:1", "ipv6:[::1]:1", "unix:/tmp/nowhere", ""])
def test_no_descriptor_leaks(pair, peer, tmp_path):
    """No descriptor leaks, with other open pipes and files, whether or not the connection exists."""
    read, write = os.pipe()
    before = open_files()
    with (tmp_path / "file").open("w"):
        close_connections({peer: "a test"})
    host, port = pair[1].getsockname()
    close_connections({f"ipv4:{host}:{port}": "a test"})

    assert open_files() == before
    os.close(read)
    os.close(write)
