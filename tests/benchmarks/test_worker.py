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
