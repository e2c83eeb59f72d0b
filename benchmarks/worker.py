"""A process that works for a benchmark, so that its work is not measured together with what asks for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from training.parent import end_with


class Worker:
    """It ends with this process at the latest."""

    def __init__(self, work: Callable[..., None], *arguments: object) -> None:
        """Start it.

        Args:
            work: a function of a connection, by which it is asked and answers, and of the arguments.
        """
        context = get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_run, args=(os.getpid(), other, work, *arguments), daemon=True)
        self._process.start()
        other.close()  # only the worker has this end now, and when it ends, that is noticed

    def send(self, message: object) -> None:
        """Ask it for something.

        Raises:
            ChildProcessError: when it has ended.
        """
        with self._noticed_end():
            self._connection.send(message)

    def receive(self) -> Any:
        """What it answers.

        Raises:
            ValueError, OSError: those that ended its work.
            ChildProcessError: when it has ended otherwise.
        """
        with self._noticed_end():
            answer = self._connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """End it."""
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
                "what it said, if anything, stands above"
            ) from None


def _run(parent: int, connection: Connection, work: Callable[..., None], *arguments: object) -> None:
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    try:
        work(connection, *arguments)
    except (ValueError, OSError, EOFError) as error:
        with suppress(ConnectionError):  # the parent has failed, and waits for no answer
            connection.send(error)
