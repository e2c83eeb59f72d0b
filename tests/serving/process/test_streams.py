"""Servers serve on while standard output and standard error are not read, full, closed or gone."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import ExitStack, contextmanager

import grpc
import pytest

from bertline.v1 import encoder_pb2 as pb
from bertline.v1 import encoder_pb2_grpc
from serving.process.streams import CHUNK, MAX_BYTES, Output
from tests.serving.models import write_model
from tests.serving.processes import command, listening
from tests.serving.reliability import wait_until

PIPE_BYTES = 65_536
LINE = "x" * 99 + "\n"


@contextmanager
def pipe():
    """Open a pipe: read and write end, closed at the end."""
    with ExitStack() as stack:
        yield [stack.enter_context(open(fd, mode, buffering=0)) for fd, mode in zip(os.pipe(), ("rb", "wb"))]  # noqa: B905


def read_all(file, until=b""):
    """Read until the other end is closed, or until `end` has been read."""
    found = b""
    while data := file.read(PIPE_BYTES):
        found += data
        if until and until in found:
            break
    return found


def fill(write):
    """Fill a pipe."""
    os.set_blocking(write.fileno(), False)
    while write.write(b"x" * 4096):
        pass
    os.set_blocking(write.fileno(), True)


def test_lines_are_written():
    """Lines of any number of threads are written in order, each whole."""
    with pipe() as (read, write):
        output = Output(write.fileno())
        threads = [
            threading.Thread(target=lambda name=name: [output.write(f"{name}{i}\n") for i in range(200)])
            for name in "abc"
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert output.finish()
        write.close()
        lines = read_all(read).decode().splitlines()

    assert output.num_dropped == 0
    for name in "abc":
        assert [line for line in lines if line[0] == name] == [f"{name}{i}" for i in range(200)]


def test_unread_lines_are_dropped():
    """`write` never waits, memory is bounded, and the number of dropped lines is written later."""
    count = (MAX_BYTES + 10 * PIPE_BYTES) // len(LINE)
    with pipe() as (read, write):
        output = Output(write.fileno())
        output.format_dropped = lambda count: f"{count} dropped\n"
        started = time.monotonic()
        for _ in range(count):
            output.write(LINE)
        assert time.monotonic() - started < 5
        assert output.num_dropped > 0
        num_dropped = output.num_dropped
        threading.Thread(target=lambda: (output.finish(60), write.close())).start()
        found = read_all(read).decode().splitlines()

    counts = [int(line.split()[0]) for line in found if line.endswith("dropped")]

    assert sum(counts) == num_dropped
    assert [line for line in found if line.startswith("x")] == [LINE[:-1]] * (count - num_dropped)


def test_close_with_a_full_pipe():
    """`finish` waits at most its timeout."""
    with pipe() as (_, write):
        fill(write)
        output = Output(write.fileno())
        output.write(LINE)

        assert not output.finish(0.1)


def test_failed_writes_are_counted():
    """Lines that a full disk loses are counted, and later lines are written if possible."""
    failures = []
    with open("/dev/full", "wb", buffering=0) as full:
        output = Output(full.fileno(), failed=failures.append)
        for _ in range(2 * CHUNK):
            output.write(LINE)
        assert output.finish()

    assert output.num_dropped == 2 * CHUNK
    assert [error.errno for error in failures] == [28]


def test_a_descriptor_that_does_not_block():
    """All lines are written as soon as there is room, also to a non-blocking descriptor."""
    with pipe() as (read, write):
        os.set_blocking(write.fileno(), False)
        output = Output(write.fileno())
        for _ in range(5000):
            output.write(LINE)
        time.sleep(0.1)
        threading.Thread(target=lambda: (output.finish(60), write.close())).start()

        assert read_all(read).decode() == LINE * 5000


def fail(stub, count):
    """Make calls that fail, one log line each."""
    for _ in range(count):
        with pytest.raises(grpc.RpcError):
            stub.Embed(pb.EmbedRequest(texts=[""] * 60), timeout=10, metadata=[("x-request-id", "i" * 128)])


@pytest.fixture
def models(tmp_path):
    """Directory with one model."""
    write_model(tmp_path)
    return tmp_path


@contextmanager
def unread(models):
    """Server that logs all calls to a full pipe: (process, stub, metrics, pipe)."""
    with pipe() as (read, write):
        fill(write)
        with (
            listening(models, "--log-calls", "all", log=write) as (process, target, metrics),
            grpc.insecure_channel(target) as channel,
        ):
            yield process, encoder_pb2_grpc.EncoderStub(channel), metrics, (read, write)


def embed(stub, count):
    """Make concurrent calls that succeed, one log line each."""
    options = {"timeout": 10, "metadata": [("x-request-id", "i" * 128)]}
    calls = [stub.Embed.future(pb.EmbedRequest(texts=["cat"]), **options) for _ in range(count)]
    assert all(call.result().dim == 8 for call in calls)


def test_server_answers_while_nobody_reads_its_log(models):
    """The server answers and ends on SIGTERM while nobody reads its log."""
    with unread(models) as (process, stub, *_):
        embed(stub, 100)
        process.send_signal(signal.SIGTERM)

        assert process.wait(20) == 0


@pytest.mark.slow
def test_lines_beyond_the_buffer_are_dropped_and_counted(models):
    """Lines beyond the buffer are dropped, and the log reports their number when it is read again."""
    with unread(models) as (_, stub, metrics, (read, _)):
        for _ in range(60):
            embed(stub, 100)
        with urllib.request.urlopen(metrics, timeout=10) as reply:
            found = re.search(r"^bertline_log_lines_dropped_total (\S+)$", reply.read().decode(), re.MULTILINE)

        assert 0 < float(found[1]) < 6000
        assert f"could not be written dropped={int(float(found[1]))}\n".encode() in read_all(read, b" dropped=")


@contextmanager
def serving(models, redirections, **streams):
    """Run a server whose streams a shell redirects, until it answers: (process, stub)."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = command(models, "--port", port, "--metrics-port", 0)
    shell = ["sh", "-c", f'exec "$@" {redirections}', "sh", *words]
    process = subprocess.Popen(shell, **streams)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = encoder_pb2_grpc.EncoderStub(channel)
            wait_until(lambda: process.poll() is not None or answers(stub), "the server does not answer", 30)
            yield process, stub
    finally:
        process.kill()
        process.communicate()


def answers(stub):
    """Return whether the server has loaded its model."""
    try:
        return stub.Embed(pb.EmbedRequest(texts=["cat"]), timeout=5, wait_for_ready=True).dim == 8
    except grpc.RpcError:
        return False


@pytest.mark.parametrize(
    "redirections",
    [
        "<&- >&- 2>&-",
        *(
            pytest.param(item, marks=pytest.mark.slow)
            for item in ("2>&-", ">&-", ">/dev/full", "2>/dev/full", ">/dev/full 2>&1")
        ),
    ],
)
def test_streams_that_cannot_be_written(models, redirections):
    """A server starts, serves and ends as usual with streams that cannot be written; the log tells of a lost line."""
    with serving(models, redirections, stderr=subprocess.PIPE) as (process, stub):
        fail(stub, 3)
        process.send_signal(signal.SIGTERM)

        assert process.wait(20) == 0
        is_told = b"cannot write to standard output, its line is lost: No space left" in process.stderr.read()
    assert is_told or redirections != ">/dev/full"


@pytest.mark.slow
@pytest.mark.parametrize("which", ["stdout", "stderr"])
@pytest.mark.parametrize("state", ["full", "gone"])
def test_streams_that_nobody_reads(models, which, state):
    """A full pipe, or one without a reader, does not affect the server."""
    with pipe() as (read, write):
        if state == "full":
            fill(write)
        else:
            read.close()
        other = {"stdout": "stderr", "stderr": "stdout"}[which]
        with serving(models, "", **{which: write, other: subprocess.DEVNULL}) as (process, stub):
            fail(stub, 3)
            process.send_signal(signal.SIGTERM)

            assert process.wait(20) == 0


NATIVE = """
import os, sys
from serving.process import streams
with streams.non_blocking():
    for _ in range(100):
        try:
            os.write(2, b"x" * 4096)  # as a library of C++ does
        except BlockingIOError:
            pass
    print("warning", file=sys.stderr)
"""


def test_lines_of_libraries_are_dropped_if_the_pipe_is_full():
    """Lines of libraries on standard error are dropped if its pipe is full."""
    with pipe() as (read, write):
        done = subprocess.run([sys.executable, "-c", NATIVE], stderr=write, timeout=20, check=False)
        write.close()

        assert done.returncode == 0
        assert len(read_all(read)) <= PIPE_BYTES
        assert os.get_blocking(read.fileno())


def test_failed_handshakes_are_not_logged(models, authority):
    """Failed handshakes write no log lines."""
    certificate = authority.sign("handshakes")
    with listening(models, "--tls-cert", certificate.path, "--tls-key", certificate.key) as (process, target, _):
        for _ in range(5):
            with socket.create_connection(target.split(":"), timeout=10) as connection:
                connection.sendall(b"GET / HTTP/1.0\r\n\r\n" * 100)
                connection.recv(1000)
        process.send_signal(signal.SIGTERM)

        assert process.wait(20) == 0
        assert not re.search("ssl|handshake", process.stderr.read(), re.IGNORECASE)
