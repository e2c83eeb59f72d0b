"""Load of Embed calls: what counts as answered, refused and failed."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from benchmarks.embed_load import EmbedLoad, LoadClient
from bertline.v1 import encoder_pb2 as pb
from bertline.v1.encoder_pb2_grpc import EncoderServicer, add_EncoderServicer_to_server


class EverySecond(EncoderServicer):
    """Server that answers every second call with a status."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self.code, self.calls = code, itertools.count()

    def Embed(self, request, context):
        if next(self.calls) % 2:
            context.set_trailing_metadata((("from", "server"),))
            context.abort(self.code, "no")
        return pb.EmbedReply()


@pytest.fixture
def run(tmp_path):
    """Load a server that answers every second call with a status, for a moment."""
    texts = tmp_path / "texts.txt"
    texts.write_text("a\nb\n")
    client = LoadClient()

    def load(code):
        server = grpc.server(ThreadPoolExecutor(2))
        add_EncoderServicer_to_server(EverySecond(code), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            return client.run(EmbedLoad(target=f"127.0.0.1:{port}", texts=texts, seconds=1.0))
        finally:
            server.stop(0)

    yield load
    client.close()


@pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED])
def test_refusals_are_counted(run, code):
    """Calls that a server under load refuses are counted in addition to the answered ones."""
    found = run(code)

    assert found.codes[code.name] > 0
    assert len(found.latencies) == found.codes["OK"] > 0


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE])
def test_failures_are_errors(run, code):
    """Calls that fail for another reason end the measurement: they are neither answers nor refusals."""
    with pytest.raises(ValueError, match=f"calls failed: .*{code.name}"):
        run(code)
