"""Run work of a benchmark in a separate process, so that it is measured apart from its caller."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from training.command_line.parent import die_with_parent


class Worker:
    """Process that runs a function. It ends with this process at the latest.

    Args:
        work: function of a connection, for messages from and to this process, and of `arguments`.
        *arguments: of the function.
    """

    def __init__(self, work: Callable[..., None], *arguments: object) -> None:
        context = get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_run, args=(os.getpid(), other, work, *arguments), daemon=True)
        self._process.start()
        other.close()  # only the worker holds this end now, so its end is noticed

    def send(self, message: object) -> None:
        """Send a message to the worker.

        Raises:
            ChildProcessError: if it has ended.
        """
        with self._noticed_end():
            self._connection.send(message)

    def receive(self) -> Any:
        """Wait for a message of the worker.

        Raises:
            ValueError, OSError: if its work ended with one.
            ChildProcessError: if it ended otherwise.
        """
        with self._noticed_end():
            answer = self._connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """End the worker."""
        self._process.terminate()
        self._process.join()

    @contextmanager
    def _noticed_end(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError):
            self._process.join()
            raise ChildProcessError(
                f"a process of this benchmark has ended (exit code {self._process.exitcode}); "
                "its output, if any, is above"
            ) from None


def _run(parent: int, connection: Connection, work: Callable[..., None], *arguments: object) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    try:
        work(connection, *arguments)
    except (ValueError, OSError, EOFError) as error:
        with suppress(ConnectionError):  # the parent has failed, and does not wait
            connection.send(error)
