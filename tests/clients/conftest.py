from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from bertline import Client
from bertline.testing import FakeServer
from tests.clients.command import run  # noqa: F401


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture
def target(server: FakeServer) -> str:
    """Return the address of the fake server, which refuses the text `refuse`."""
    server.refuse("refuse", "refused")
    return server.target


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    with Client(server.target, batch_size=4) as client:
        yield client


@pytest.fixture
def dead_target() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"
