"""Server that has answered every kind of call once."""

import threading

import grpc
import pytest

from bertline.v1 import encoder_pb2 as pb
from tests.serving.conftest import serve
from tests.serving.models import write_model


def ask(running):
    """Make calls that are answered, truncated, rejected and invalid."""
    for texts, truncate in ([["cat", "the cat " * 5], False], [["cat " * 400], True], [[""], False]):
        try:
            running.stub.Embed(pb.EmbedRequest(texts=texts, truncate=truncate))
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT  # noqa: PT017


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """Server with a model that loads and one that does not, called repeatedly."""
    models = tmp_path_factory.mktemp("models")
    write_model(models, "embedder")
    write_model(models, "broken", files={"model.onnx": "0" * 64, "tokenizer.json": "0" * 64})
    ended = threading.Event()
    with serve(models, cache_bytes=1) as running:  # nothing fits, so everything is computed each time

        def keep_asking():
            while not ended.wait(0.1):
                ask(running)

        ask(running)
        thread = threading.Thread(target=keep_asking)
        thread.start()
        yield running
        ended.set()
        thread.join()
