"""Standard output and standard error that keep nobody waiting: what cannot be written is dropped, and counted."""

from __future__ import annotations

import io
import logging
import os
import select
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO, cast

logger = logging.getLogger(__name__)

MAX_BYTES = 2**20
"""Bytes of lines that may wait to be written; further lines are dropped."""
GATHER_S = 0.02
"""Lines that come within so many seconds are written together: each write has to wait for the interpreter lock."""
CHUNK = 100
"""Lines of one write; a write that fails loses all of them."""
CLOSE_S = 1.0
"""How long the last lines may take to be written when the process ends."""


class Output:
    """Lines on their way to a file descriptor. A thread writes them; any thread may add some, and none waits."""

    def __init__(self, fd: int, *, failed: Callable[[OSError], None] = lambda _: None) -> None:
        """Make it.

        Args:
            failed: called with the error of the first write that fails.
        """
        self.tell: Callable[[int], str] = lambda count: ""
        """Makes the line that says how many lines were dropped."""
        self.num_dropped = 0
        """Lines that were dropped."""
        self._fd = fd
        self._failed: Callable[[OSError], None] | None = failed
        self._num_told = 0
        self._waiting: deque[bytes] = deque()
        self._num_bytes = 0
        """Bytes of lines that wait or are being written."""
        self._condition = threading.Condition()  # its lock is reentrant: a finalizer may write while a line is put
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"output-{fd}", daemon=True)
        self._thread.start()

    def put(self, text: str) -> None:
        """Queue text, which is written soon."""
        data = text.encode("utf-8", "backslashreplace")
        with self._condition:
            if self._num_bytes + len(data) > MAX_BYTES or self._closing.is_set():
                self.num_dropped += data.count(b"\n")
                return
            self._waiting.append(data)
            self._num_bytes += len(data)
            self._condition.notify()

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Write what waits, and take no more; again is fine.

        Returns:
            Whether all was written in time.
        """
        self._closing.set()
        with self._condition:
            self._condition.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while taken := self._take():
            lines, num_dropped = taken
            for first in range(0, len(lines), CHUNK):
                self._write(lines[first : first + CHUNK])
            self._tell_of_dropped(num_dropped)
            self._closing.wait(GATHER_S)

    def _take(self) -> tuple[Sequence[bytes], int] | None:
        """All lines that wait, and how many were dropped until now; None when there will be no more."""
        with self._condition:
            self._condition.wait_for(lambda: self._waiting or self._closing.is_set())
            lines = list(self._waiting)
            self._waiting.clear()
            return (lines, self.num_dropped) if lines else None

    def _write(self, lines: Sequence[bytes]) -> None:
        data = b"".join(lines)
        is_written = self._send(data)
        with self._condition:
            self._num_bytes -= len(data)
            if not is_written:
                self.num_dropped += data.count(b"\n")

    def _tell_of_dropped(self, num_dropped: int) -> None:
        if num_dropped > self._num_told and self._send(self.tell(num_dropped - self._num_told).encode()):
            self._num_told = num_dropped

    def _send(self, data: bytes) -> bool:
        try:
            write_all(self._fd, data)
        except OSError as error:
            if self._failed:
                self._failed(error)
                self._failed = None
            return False
        return True


class Stream(io.TextIOBase):
    """Replacement for `sys.stdout` or `sys.stderr`."""

    encoding = "utf-8"

    def __init__(self, output: Output, fd: int) -> None:
        self._output = output
        self._fd = fd

    def write(self, text: str) -> int:
        """Queue text, which is written soon; never fails."""
        self._output.put(text)
        return len(text)

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """Where the text goes in the end."""
        return self._fd


def write_all(fd: int, data: bytes) -> None:
    """Write all data, however long it takes, even if another process that shares the descriptor made it non-blocking.

    Raises:
        OSError: when that fails.
    """
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            ready = select.poll()
            ready.register(fd, select.POLLOUT)
            ready.poll()


def open_missing() -> None:
    """Open /dev/null in the place of standard streams that are closed. Otherwise the next thing to be opened, such as a
    socket, would get their numbers, and the output of libraries."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free


@contextmanager
def never_waiting() -> Iterator[None]:
    """Keep printing and logging from ever waiting for a reader; write the last lines at the end of the context.

    Lines that libraries of C++ and Rust write to standard error themselves are dropped where a pipe or terminal is
    full.
    """
    before = sys.stdout, sys.stderr
    _outputs[:] = [Output(1, failed=_warn), Output(os.dup(2))]
    sys.stdout, sys.stderr = (cast(TextIO, Stream(output, fd)) for fd, output in enumerate(_outputs, start=1))
    _unblock(2)
    try:
        yield
    finally:
        if flush():
            sys.stdout, sys.stderr = before


_outputs: list[Output] = []
"""Standard output and standard error, in `never_waiting`."""


def tell_dropped_with(tell: Callable[[int], str]) -> None:
    """Set the function that makes the line that says how many lines of standard error were dropped."""
    if _outputs:
        _outputs[1].tell = tell


def num_dropped() -> int:
    """Lines of standard error that were dropped until now."""
    return _outputs[1].num_dropped if _outputs else 0


def flush() -> bool:
    """Write the last lines, and take no more.

    Returns:
        Whether all was written in time.
    """
    return not [output for output in _outputs if not output.close()]


def _warn(error: OSError) -> None:
    logger.warning("standard output cannot be written, and the line for it is lost: %s", error.strerror)


def _unblock(fd: int) -> None:
    """Make writing to a pipe or terminal never wait. It is opened again, which gives it flags of its own, so that other
    processes that share it are not affected. A socket, or a pipe that nobody reads, cannot be opened again."""
    mode = os.fstat(fd).st_mode
    if not stat.S_ISFIFO(mode) and not os.isatty(fd):
        return
    with suppress(OSError):
        again = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        os.dup2(again, fd)
        os.close(again)
