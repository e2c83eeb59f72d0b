"""Server processes that are reloaded, drained and killed while several clients call them without pause."""

import json
import os
import shutil
import signal
import threading
import time
from contextlib import contextmanager

import grpc
import numpy as np
import pytest

from bertline.v1 import encoder_pb2 as pb
from bertline.v1 import encoder_pb2_grpc
from tasks.bundle.model_directory import MODEL_FILE
from tests.serving.models import write_model
from tests.serving.processes import listening
from tests.serving.reliability import is_vector, open_channel, texts_of, vectors, wait_until

TEXTS = texts_of(6, 8)


class Client(threading.Thread):
    """Client with several concurrent calls, until it is stopped or a call fails."""

    def __init__(self, channel):
        super().__init__()
        self._stub = encoder_pb2_grpc.EncoderStub(channel)
        self.replies = []
        """(texts, reply) in the order of the requests."""
        self.errors = []
        self.stopped = threading.Event()

    def run(self):
        """Keep 6 concurrent calls."""
        number = 0
        while not self.errors and not self.stopped.is_set():
            asked = [TEXTS[(number + i) % 8 :] for i in range(6)]
            calls = [self._stub.Embed.future(pb.EmbedRequest(texts=texts), timeout=30) for texts in asked]
            number += 1
            for texts, call in zip(asked, calls, strict=True):
                if error := call.exception():
                    self.errors.append((error.code(), error.details()))
                else:
                    self.replies.append((texts, call.result()))


@contextmanager
def clients(target):
    """Run clients with a connection each; yield them with their channels."""
    with open_channel(target) as first, open_channel(target) as second, open_channel(target) as third:
        running = [Client(channel) for channel in (first, second, third)]
        for client in running:
            client.start()
        try:
            yield running
        finally:
            for client in running:
                client.stopped.set()
            for client in running:
                client.join(30)


def wait_for_more(running, condition=lambda reply: True):
    """Wait until each client has more replies, and its last one satisfies a condition."""
    counts = [len(client.replies) for client in running]
    wait_until(
        lambda: all(
            len(client.replies) > count + 3 and condition(client.replies[-1][1])
            for client, count in zip(running, counts, strict=True)
        ),
        "no more replies come",
    )


def put(models, version, seed, *, broken=False):
    """Write a version elsewhere and rename it into place; return the vector of each text."""
    staging = models.parent / "staging"
    reference = write_model(staging, "tiny", version, seed=seed)
    if broken:
        (staging / "tiny" / version / MODEL_FILE).write_bytes(b"junk")
    (models / "tiny").mkdir(parents=True, exist_ok=True)
    os.rename(staging / "tiny" / version, models / "tiny" / version)
    return dict(zip(TEXTS, np.stack(reference.predict(TEXTS)), strict=True))


def test_reload_and_drain(tmp_path):
    """During reloads and a drain, each reply is wholly of one version, and server and clients count the same calls."""
    models = tmp_path / "models"
    expected = {"1": put(models, "1", 1)}
    log = tmp_path / "log"
    flags = ("--poll-s", 0.02, "--workers", 2, "--log-format", "json", "--log-calls", "all")
    with (
        log.open("w") as stderr,
        listening(models, *flags, log=stderr) as (process, target, _),
        clients(target) as running,
    ):
        wait_for_more(running)
        expected["2"] = put(models, "2", 2)
        wait_for_more(running, lambda reply: reply.model.version == "2")
        put(models, "3", 3, broken=True)
        shutil.rmtree(models / "tiny" / "1")
        expected["4"] = put(models, "4", 4)
        wait_for_more(running, lambda reply: reply.model.version == "4")
        process.send_signal(signal.SIGTERM)
        for client in running:
            client.join(20)
            assert not client.is_alive()
        assert process.wait(10) == 0

    replies = [item for client in running for item in client.replies]

    assert {reply.model.version for _, reply in replies} == {"1", "2", "4"}
    for texts, reply in replies:
        assert is_vector(vectors(reply), [expected[reply.model.version][text] for text in texts])
    assert all(client.errors for client in running)
    codes = {code for client in running for code, _ in client.errors}
    assert codes <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}  # gRPC itself cancels what comes late
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert sum(line.get("code") == "OK" for line in lines) == len(replies)
    assert {line["logger"] for line in lines if line["level"] == "error"} <= {"serving.core.repository"}


def test_calls_on_a_killed_server_are_unavailable(slow_models):
    """Calls on a killed server are UNAVAILABLE immediately, and the same channels work with a new server."""
    with (
        listening(slow_models, "--max-batch-tokens", 32, "--max-queue-s", 1000) as (process, target, _),
        open_channel(
            target, initial_reconnect_backoff_ms=100, min_reconnect_backoff_ms=100, max_reconnect_backoff_ms=100
        ) as channel,
        open_channel(target, initial_reconnect_backoff_ms=100) as other,
    ):
        stubs = [encoder_pb2_grpc.EncoderStub(item) for item in (channel, other)]
        text = pb.EmbedRequest(texts=TEXTS[:1])
        alone = vectors(stubs[0].Embed(text))
        calls = [stub.Embed.future(pb.EmbedRequest(texts=TEXTS)) for stub in stubs for _ in range(30)]
        next(call for call in calls if call.result())
        killed = time.monotonic()
        process.kill()
        codes = [call.code() for call in calls]
        assert time.monotonic() - killed < 2
        assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
        assert codes.count(grpc.StatusCode.UNAVAILABLE) > 20
        with pytest.raises(grpc.RpcError) as caught:
            stubs[0].Embed(text, timeout=2)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with listening(slow_models, port=target.rpartition(":")[2]):
            for stub in stubs:
                assert is_vector(vectors(stub.Embed(text, timeout=10, wait_for_ready=True)), alone)
