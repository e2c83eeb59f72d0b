"""The shared parts of the benchmarks: rates, workers, and which calls count as answered, refused and failed."""

from __future__ import annotations

import itertools
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from benchmarks.harness import EmbedLoad, LoadClient, Worker, alternate, print_rates
from bertline.v1 import encoder_pb2 as pb
from bertline.v1.encoder_pb2_grpc import EncoderServicer, add_EncoderServicer_to_server


def test_ratios_are_those_of_a_round(capsys):
    """Alternatives are measured alternately, and compared within each round."""
    order, rates = [], iter([10.0, 30.0, 20.0, 20.0])

    def measure(name):
        return lambda: order.append(name) or next(rates)

    print_rates(alternate({"first": measure("first"), "second": measure("second")}, 2), "texts")

    assert order == ["first", "second"] * 2
    assert "25 texts/s  2.00 of first (1.00-3.00)" in capsys.readouterr().out


def double(connection, start):
    """Work of the test's worker: double numbers, and die on request."""
    connection.send(start)
    while (number := connection.recv()) != "die":
        connection.send(2 * int(number))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def worker():
    with Worker(double, "ready") as found:
        assert found.receive() == "ready"
        yield found


def test_killed_worker_raises(worker):
    """Both `receive` and `send` raise when the worker was killed."""
    worker.send(2)
    assert worker.receive() == 4
    worker.send("die")

    with pytest.raises(ChildProcessError, match=r"exit code -9"):
        worker.receive()
    with pytest.raises(ChildProcessError, match=r"exit code -9"):
        worker.send(2)


def test_worker_of_a_failed_parent_ends_silently(worker, capfd):
    """A worker whose parent has closed the connection exits without printing."""
    worker._connection.close()
    worker._process.join()

    assert worker._process.exitcode == 0
    assert capfd.readouterr().err == ""


def test_error_of_a_worker_is_raised_in_the_parent(worker, capfd):
    """A ValueError of the worker is raised in the parent, and the worker does not print it."""
    worker.send("two")

    with pytest.raises(ValueError, match="'two'"):
        worker.receive()
    assert capfd.readouterr().err == ""


class EverySecond(EncoderServicer):
    """Server that answers every second call with a status."""

    def __init__(self) -> None:
        self.code, self.calls = grpc.StatusCode.OK, itertools.count()

    def Embed(self, request, context):
        if next(self.calls) % 2:
            context.abort(self.code, "no")
        return pb.EmbedReply()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Load a server that answers every second call with a status, for a moment."""
    texts = tmp_path_factory.mktemp("texts") / "texts.txt"
    texts.write_text("a\nb\n")
    servicer, server = EverySecond(), grpc.server(ThreadPoolExecutor(2))
    add_EncoderServicer_to_server(servicer, server)
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()

    def load(code):
        servicer.code, servicer.calls = code, itertools.count()
        return client.run(EmbedLoad(target=target, texts=texts, seconds=0.5))

    with LoadClient() as client:
        yield load
        server.stop(0)


@pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED])
def test_refusals_are_counted(run, code):
    """Calls that a server under load refuses are counted in addition to the answered ones."""
    found = run(code)

    assert found.codes[code.name] > 0
    assert len(found.latencies) == found.codes["OK"] > 0


def test_failures_are_errors(run):
    """Calls that fail for another reason end the measurement: they are neither answers nor refusals."""
    with pytest.raises(ValueError, match=r"calls failed: .*INTERNAL"):
        run(grpc.StatusCode.INTERNAL)
