"""Fake server for tests, in their process: real gRPC, no model, the same answers every time, and faults on demand.

from bertline import Client
from bertline.testing import FakeServer
with FakeServer() as server, Client(server.target) as client:
    vectors = client.embed(["one text", "another text"])
"""

from bertline.testing._answers import vector
from bertline.testing._models import FakeModel
from bertline.testing._server import FakeCall, FakeServer

__all__ = ["FakeCall", "FakeModel", "FakeServer", "vector"]
