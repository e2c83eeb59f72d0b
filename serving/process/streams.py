"""Non-blocking standard output and standard error: lines that cannot be written are dropped and counted."""

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
"""Maximum bytes of lines that wait to be written; further lines are dropped."""
GATHER_S = 0.02
"""Seconds for which lines are gathered into one write: each write must wait for the interpreter lock."""
CHUNK = 100
"""Maximum lines of one write; a failed write loses all of them."""
CLOSE_S = 1.0
"""Seconds that the last lines may take when the process ends."""


class Output(io.TextIOBase):
    """Stream of lines to a file descriptor. A thread writes; `write` may be called from any thread and never blocks."""

    encoding = "utf-8"

    def __init__(self, fd: int, *, failed: Callable[[OSError], None] = lambda _: None) -> None:
        """Start the thread.

        Args:
            fd: file descriptor to write to.
            failed: called with the error of the first failed write.
        """
        self.format_dropped: Callable[[int], str] = lambda count: ""
        """Returns the line that reports a number of dropped lines."""
        self.num_dropped = 0
        """Number of dropped lines."""
        self._fd = fd
        self._failed: Callable[[OSError], None] | None = failed
        self._num_reported = 0
        self._waiting: deque[bytes] = deque()
        self._num_bytes = 0
        """Bytes of lines that wait or are being written."""
        self._condition = threading.Condition()  # with a reentrant lock: a finalizer may write during `write`
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"output-{fd}", daemon=True)
        self._thread.start()

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the file descriptor that the text is written to."""
        return self._fd

    def write(self, text: str) -> int:
        """Queue text to be written by the thread; never fails."""
        data = text.encode("utf-8", "backslashreplace")
        with self._condition:
            if self._num_bytes + len(data) > MAX_BYTES or self._closing.is_set():
                self.num_dropped += data.count(b"\n")
            else:
                self._waiting.append(data)
                self._num_bytes += len(data)
                self._condition.notify()
        return len(text)

    def finish(self, timeout_s: float = CLOSE_S) -> bool:
        """Write the waiting lines and end the thread. May be called again.

        Returns:
            True if everything was written within `timeout_s`.
        """
        self._closing.set()
        with self._condition:
            self._condition.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while lines := self._take():
            num_dropped = self.num_dropped
            for first in range(0, len(lines), CHUNK):
                data = b"".join(lines[first : first + CHUNK])
                is_written = self._send(data)
                with self._condition:
                    self._num_bytes -= len(data)
                    if not is_written:
                        self.num_dropped += data.count(b"\n")
            new = num_dropped - self._num_reported
            if new > 0 and self._send(self.format_dropped(new).encode()):
                self._num_reported = num_dropped
            self._closing.wait(GATHER_S)

    def _take(self) -> Sequence[bytes]:
        """Wait for lines and return them; none after `finish`."""
        with self._condition:
            self._condition.wait_for(lambda: self._waiting or self._closing.is_set())
            lines = list(self._waiting)
            self._waiting.clear()
            return lines

    def _send(self, data: bytes) -> bool:
        try:
            write_all(self._fd, data)
        except OSError as error:
            if self._failed:
                self._failed(error)
                self._failed = None
            return False
        return True


def write_all(fd: int, data: bytes) -> None:
    """Write all data; wait for the reader even if another process has made the descriptor non-blocking.

    Raises:
        OSError: when a write fails.
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
    """Open /dev/null for closed standard streams. Otherwise the next file or socket gets the number of one, and
    libraries write into it."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number


@contextmanager
def non_blocking() -> Iterator[None]:
    """Replace `sys.stdout` and `sys.stderr` by streams that never wait for a reader; write the last lines at the end.

    C++ and Rust libraries write to standard error themselves; their lines are dropped while a pipe or terminal is full.
    """
    before = sys.stdout, sys.stderr
    _outputs[:] = [Output(1, failed=_warn), Output(os.dup(2))]
    sys.stdout, sys.stderr = (cast(TextIO, output) for output in _outputs)
    unblock(2)
    try:
        yield
    finally:
        if flush():
            sys.stdout, sys.stderr = before


_outputs: list[Output] = []
"""Writers of standard output and standard error inside `non_blocking`."""


def format_dropped_with(format_dropped: Callable[[int], str]) -> None:
    """Set the function that makes the line about dropped lines of standard error."""
    if _outputs:
        _outputs[1].format_dropped = format_dropped


def num_dropped() -> int:
    """Return the number of dropped lines of standard error."""
    return _outputs[1].num_dropped if _outputs else 0


def flush() -> bool:
    """Write the waiting lines and end both writers.

    Returns:
        True if everything was written within CLOSE_S.
    """
    return not [output for output in _outputs if not output.finish()]


def _warn(error: OSError) -> None:
    logger.warning("cannot write to standard output, its line is lost: %s", error.strerror)


def unblock(fd: int) -> None:
    """Make a pipe or terminal non-blocking.

    Opens it again to get another file description, so that other processes that share it are not affected. Sockets
    and pipes without a reader cannot be opened again.
    """
    mode = os.fstat(fd).st_mode
    if not stat.S_ISFIFO(mode) and not os.isatty(fd):
        return
    with suppress(OSError):
        again = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        os.dup2(again, fd)
        os.close(again)
