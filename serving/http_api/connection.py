"""Connection of the web server: uvicorn's, with limits that it lacks.

uvicorn has no limit on the time in which a request's headers arrive, on their size, or on the number of connections,
and does not tell the application when a client hangs up while it computes.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import sys
import termios
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADERS_S = 20.0
"""Maximum seconds from the start of a connection, or of a request on it, to the end of the request's headers."""
MAX_HEADER_BYTES = 32 * 1024
"""Maximum size of the path and the headers of a request."""
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"

logger = logging.getLogger(__name__)


class Connection(HttpToolsProtocol):
    """Connection of a client."""

    max_connections = 4096
    """Maximum number of open connections; further ones are closed immediately."""
    unread_s = 20.0
    """Seconds in which a client must read something of a reply that waits for it."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._own_tasks: set[asyncio.Task[None]] = set()
        self._headers_timer: asyncio.TimerHandle | None = None
        self._num_header_bytes = 0
        self._is_refused = False
        self._reading_timer: asyncio.TimerHandle | None = None
        self._unread_since: float | None = None
        """Time since which a reply waits for its client; None if none does."""

    @property
    def has_unread_reply(self) -> bool:
        """True if a reply has waited for its client for more than `unread_s`, even if the client reads slowly."""
        return self._unread_since is not None and self.loop.time() - self._unread_since > self.unread_s

    def connection_made(self, transport: Any) -> None:
        """Accept a connection, or close it if there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.close()
            return
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what the connection waited for."""
        self._stop_timer()
        self._stop_watching()
        super().connection_lost(exc)
        for task in list(self._own_tasks):
            task.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, unless the request was refused already."""
        if self._is_refused or self.transport.is_closing():
            return
        if self._headers_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_headers()
        try:
            super().data_received(data)
        except Exception:  # a target that httptools cannot take apart
            logger.debug("a request could not be parsed", exc_info=True)
            self.send_400_response("Invalid HTTP request received.")

    def on_message_begin(self) -> None:
        """Start to count the headers of a request."""
        super().on_message_begin()
        self._num_header_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Count a part of the target."""
        if self._counts(len(url)):
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header."""
        if self._counts(len(name) + len(value) + 4):
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the request."""
        self._stop_timer()
        if not self._is_refused:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End the body."""
        if not self._is_refused:
            super().on_message_complete()

    def pause_writing(self) -> None:
        """Wait until the client has read what was written, but not forever."""
        super().pause_writing()
        if self._unread_since is None:
            self._unread_since = self.loop.time()
        self._watch_reading()

    def resume_writing(self) -> None:
        """Write on."""
        self._stop_watching()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """End a reply."""
        self._unread_since = None
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, at once if its client does not read."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _watch_reading(self) -> None:
        self._reading_timer = self.loop.call_later(self.unread_s, self._check_reading, self._num_unread())

    def _num_unread(self) -> int:
        """Return the bytes that the client has not taken: those here, and those that the system holds for it."""
        unsent = bytearray(4)
        with suppress(OSError):  # a socket that is closed, or has no such number
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, unsent)
        return self.transport.get_write_buffer_size() + int.from_bytes(unsent, sys.byteorder)

    def _check_reading(self, size_before: int) -> None:
        """Abort the connection if its client has read nothing."""
        if self._num_unread() >= size_before:
            logger.debug("closed a connection whose client does not read")
            self.transport.abort()
        else:
            self._watch_reading()

    def _stop_watching(self) -> None:
        if self._reading_timer:
            self._reading_timer.cancel()
            self._reading_timer = None

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Start the task of a request, and remember it."""
        task = self.loop.create_task(cycle.run_asgi(app))
        for tasks in (self.tasks, self._own_tasks):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    def _counts(self, num_bytes: int) -> bool:
        """Count bytes of the headers, and return whether they are still few enough."""
        self._num_header_bytes += num_bytes
        if self._num_header_bytes > MAX_HEADER_BYTES and not self._is_refused:
            self._refuse(TOO_LARGE)
        return not self._is_refused

    def _expect_headers(self) -> None:
        self._headers_timer = self.loop.call_later(HEADERS_S, self._refuse, TOO_SLOW)

    def _stop_timer(self) -> None:
        if self._headers_timer:
            self._headers_timer.cancel()
            self._headers_timer = None

    def _refuse(self, reply: bytes) -> None:
        self._is_refused = True
        self._stop_timer()
        if not self.transport.is_closing():
            self.transport.write(reply)
            self.transport.close()
