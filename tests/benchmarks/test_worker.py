import os
import signal

import pytest

from benchmarks.worker import Worker


def double(connection, start):
    """Work of the test's worker: double numbers, and die on request."""
    connection.send(start)
    while (number := connection.recv()) != "die":
        connection.send(2 * int(number))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def worker():
    found = Worker(double, "ready")
    assert found.receive() == "ready"
    yield found
    found.close()


def test_a_worker_that_is_killed_is_noticed(worker):
    """Both `receive` and `send` raise."""
    worker.send(2)
    assert worker.receive() == 4
    worker.send("die")

    with pytest.raises(ChildProcessError, match=r"exit code -9"):
        worker.receive()
    with pytest.raises(ChildProcessError, match=r"exit code -9"):
        worker.send(2)


def test_a_worker_whose_asker_has_failed_ends_silently(worker, capfd):
    """Only the error of the parent is printed."""
    worker._connection.close()
    worker._process.join()

    assert worker._process.exitcode == 0
    assert capfd.readouterr().err == ""


def test_a_mistake_that_a_worker_finds_is_raised_here(worker, capfd):
    """The worker does not print it."""
    worker.send("two")

    with pytest.raises(ValueError, match="'two'"):
        worker.receive()
    assert capfd.readouterr().err == ""
