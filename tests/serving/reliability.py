"""Helpers of the reliability tests: distinguishable texts, and checks after the traffic has ended."""

import random
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import grpc
import numpy as np

from tests.serving.models import WORDS


def texts_of(num_words, count, seed=0):
    """Return `count` different texts."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=num_words)) for _ in range(count)]


def vectors(reply):
    """Return the vectors of a reply, [texts, dim]."""
    return np.frombuffer(reply.vectors, "<f4").reshape(-1, reply.dim)


def is_vector(found, expected):
    """Return whether two vectors are equal up to the rounding differences between batches."""
    return np.allclose(found, expected, rtol=1e-4, atol=1e-4)


@contextmanager
def open_channel(target, **options):
    """Open a channel with a separate connection."""
    pairs = [("grpc.use_local_subchannel_pool", 1), *((f"grpc.{name}", value) for name, value in options.items())]
    with grpc.insecure_channel(target, options=pairs) as channel:
        yield channel


@contextmanager
def client_process(source, *arguments):
    """Run a client process, and kill it at the end."""
    process = subprocess.Popen([sys.executable, "-c", source, *map(str, arguments)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_until(condition, message="it never came", limit_s=60):
    """Wait until a condition is true."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, message
        time.sleep(0.005)


def hold(monkeypatch, owner, name):
    """Make a method wait; return an event for its call and one that releases it."""
    called, release, method = threading.Event(), threading.Event(), getattr(owner, name)

    def held(*arguments, **options):
        called.set()
        assert release.wait(60)
        return method(*arguments, **options)

    monkeypatch.setattr(owner, name, held)
    return called, release


def check_counts(server):
    """Check that each started call has ended once and nothing waits."""

    def difference():
        return server.total("grpc_server_started_total") - server.total("grpc_server_handled_total")

    wait_until(lambda: not difference(), "calls have not ended")
    assert server.total("grpc_server_handling_seconds_count") == server.total("grpc_server_handled_total")
    assert server.total("bertline_queue_sequences") == server.total("bertline_queue_tokens") == 0


def errors_of(caplog):
    """Return the messages of the errors in the log."""
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


def check_log(records):
    """Check that the log has no errors."""
    assert [record for record in records if record.levelname in ("ERROR", "CRITICAL") or record.exc_info] == []
