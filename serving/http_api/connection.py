"""HTTP/1.1 connections: one request at a time, and no more is read than its answer needs.

What follows a request stays in the socket until the reply has been sent and read. What has been read counts against the
memory budget of the server, and whoever neither sends nor reads is disconnected.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import logging
import re
import socket
import ssl
import sys
import termios
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp

from serving.core.calls import connection_name
from serving.core.errors import InvalidRequestError
from serving.core.request_memory import Budget
from serving.http_api.framing import Body, ChunkedBody, Head, MalformedRequestError

HEADERS_S = 20.0
"""Maximum seconds from the start of a connection, or of a request on it, to the end of the request's head."""
IDLE_S = 75.0
"""Seconds after which an idle connection is closed; above the 60 s of common proxies, which would otherwise send a
request on a connection that is being closed."""
LINGER_S, MAX_DROPPED_BYTES = 2.0, 16 * 2**20
"""Seconds and bytes for which the rest of a refused request is read and dropped: a connection that is closed before is
reset, and its client may never see the reply."""
BACKLOG = 1024
CHECK_S = 0.25
"""Seconds between checks of these times."""
MAX_HEADER_BYTES = 32 * 1024
"""Maximum size of the head of a request."""
FREE_BYTES = 4 * 1024
"""Received bytes of a connection that need no memory of the budget."""
SMALL_READ_BYTES, BODY_READ_BYTES = 8 * 1024, 64 * 1024
"""Maximum bytes that are read at once: of heads and of chunks, a thousand of which take 2 ms; and of other bodies."""
TLS_WRITE_BYTES = 16 * 1024
"""Bytes of a reply that are handed to TLS at a time: it reports them as taken before the system has taken them."""
MAX_LOST = 256
"""Number of closed TLS connections after which the garbage collector runs: they refer to their buffers in cycles."""
_HEAD_END = re.compile(rb"\n\r?\n")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

logger = logging.getLogger(__name__)


class HttpFront:
    """Web server of an application, with its open connections. Call `start` and `stop` in one event loop."""

    def __init__(
        self,
        app: ASGIApp,
        budget: Budget,
        *,
        max_connections: int,
        unread_s: float,
        refused: Callable[[str, float], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Set the limits.

        Args:
            app: answers the requests.
            budget: memory budget of all messages.
            max_connections: maximum number of open connections.
            unread_s: seconds in which a client must read something of a reply that waits for it.
            refused: called with the status of each request that cannot be read, and the seconds that it took.
            tls: the server's certificates; None for plain text.
        """
        self.app, self.budget, self.tls = app, budget, tls
        self.max_connections, self.unread_s, self.refused = max_connections, unread_s, refused
        self.port = 0
        """Port; 0 before `start`."""
        self.open: set[Connection] = set()
        self.waiting: dict[Connection, None] = {}
        """Connections without a request that is being answered, the one that has waited longest first."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.num_lost = 0
        """Connections that were closed since the garbage collector ran."""
        self.buffer = memoryview(bytearray(BODY_READ_BYTES))
        """Bytes that a connection has just received, before it takes them."""
        self.date = b""
        """Header `date` of replies."""
        self._listener: asyncio.Server | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, *, is_shared: bool = False) -> None:
        """Listen.

        Args:
            host, port: address.
            is_shared: other processes listen on it, too.

        Raises:
            OSError: when the address is not available.
        """
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: Connection(self),
            host,
            port,
            ssl=self.tls,
            backlog=BACKLOG,
            family=socket.AF_UNSPEC,
            reuse_port=is_shared,
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        self._watching = asyncio.create_task(self._watch())

    async def stop(self, grace_s: float) -> None:
        """Accept no more connections, and end those that are open when their requests have been answered.

        Args:
            grace_s: seconds after which running requests are cancelled.
        """
        if not (self._listener and self._watching):
            return
        self._listener.close()
        for connection in list(self.open):
            connection.shut_down()
        end_s = time.monotonic() + grace_s
        while self.open and time.monotonic() < end_s:
            await asyncio.sleep(CHECK_S / 5)
        for connection in list(self.open):
            connection.abort()
        for task in (*self.tasks, self._watching):
            task.cancel()

    async def _watch(self) -> None:
        """Check the times of all connections until cancelled."""
        while True:
            self.date = f"date: {formatdate(usegmt=True)}\r\n".encode()
            self._check(time.monotonic())
            if self.tls and self.num_lost > MAX_LOST:
                self.num_lost = 0
                gc.collect()
            await asyncio.sleep(CHECK_S)

    def _check(self, now: float) -> None:
        for connection in list(self.open):  # not in `_watch`, whose frame would keep the last one
            connection.check(now)

    def make_room(self) -> None:
        """Close connections that hold memory although nothing moves: unread replies, and heads that do not end."""
        now = time.monotonic()
        for connection in [item for item in self.open if item.is_stuck(now)]:
            logger.debug("closed a connection whose client is too slow, as others need the memory")
            connection.abort()


class Connection(asyncio.BufferedProtocol):
    """Connection of a client."""

    transport: asyncio.Transport

    def __init__(self, front: HttpFront) -> None:
        self._front = front
        self._data = bytearray()
        """Received bytes that no request has taken yet."""
        self._num_counted = 0
        """Bytes of them that count against the memory budget."""
        self._since_s = time.monotonic()
        """Time since which the connection waits for a request, or has been closing."""
        self._is_new = True
        self._is_closing = False
        self._is_paused = False
        self._num_dropped = 0
        """Bytes that were dropped since the connection has been closing."""
        self._head: Head | None = None
        """Head of the request that is being answered; None while the connection waits for one."""
        self._body: Body | ChunkedBody = Body(0)
        self._expects_continue = False
        self._task: asyncio.Task[None] | None = None
        self._arrived: asyncio.Future[None] | None = None
        """Set when more of the body has arrived; None while nothing waits for it."""
        self._reply_head = b""
        self._is_answered = False
        self._writable: asyncio.Future[None] | None = None
        """Set when the client has read what was written; None while all was read."""
        self._unread_s: float | None = None
        """Time since which a reply waits for its client; None if none does."""
        self._last_read = (0.0, 0)
        """Time of the last check whether the client reads, and the bytes that it had not read."""

    def connection_made(self, transport: Any) -> None:
        """Accept a connection. If there are too many, the one that has waited longest for a request gives way."""
        self.transport = transport
        transport.set_write_buffer_limits(high=1)  # `send` waits until the system has taken all bytes
        peer = (transport.get_extra_info("peername") or ("unknown", 0))[:2]
        self._scope = {
            "scheme": "https" if self._front.tls else "http",
            "client": peer,
            "server": (transport.get_extra_info("sockname") or ("unknown", 0))[:2],
        }
        self._name = connection_name(*peer)
        if len(self._front.open) >= self._front.max_connections:
            if not (oldest := next(iter(self._front.waiting), None)):
                self._is_closing = True
                transport.abort()
                return
            oldest.abort()
        self._front.open.add(self)
        self._front.waiting[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request that is being answered."""
        self._is_closing = True
        self._forget()
        self._front.num_lost += 1
        if self._task:
            self._task.cancel()
            self._task = None

    def abort(self) -> None:
        """Close the connection at once."""
        self._forget()
        self.transport.abort()

    def shut_down(self) -> None:
        """Close the connection when the request that is being answered has ended."""
        if self._head:
            self._head.keeps_alive = False
        else:
            self._close()

    def is_stuck(self, now: float) -> bool:
        """Return whether a reply has waited for its client too long, even if it reads slowly, or a large head does not
        end."""
        if self._unread_s is not None:
            return now - self._unread_s > self._front.unread_s
        return not self._head and self._num_counted > 0 and now - self._since_s > LINGER_S

    def check(self, now: float) -> None:
        """Close the connection if its client has been silent or has not read for too long."""
        waited_s = now - self._since_s
        if self._is_closing:
            if waited_s > LINGER_S:
                self.abort()
        elif self._head:
            if self._writable and now - self._last_read[0] > self._front.unread_s:
                if (num_unread := self._num_unread()) >= self._last_read[1]:
                    logger.debug("closed a connection whose client does not read")
                    self.abort()
                self._last_read = now, num_unread
        elif self._is_new or self._data:
            if waited_s > HEADERS_S:
                self._refuse("408 Request Timeout", f"no complete request within {HEADERS_S:g} s")
        elif waited_s > IDLE_S:
            self._close()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to put received bytes."""
        is_large = self._is_closing or (self._head and isinstance(self._body, Body))
        return self._front.buffer if is_large else self._front.buffer[:SMALL_READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Take received bytes."""
        if self._is_closing:  # of a request that was refused
            self._num_dropped += nbytes
            if self._num_dropped > MAX_DROPPED_BYTES:
                self.abort()
            return
        if not (self._data or self._head or self._is_new):
            self._since_s = time.monotonic()
        self._data += self._front.buffer[:nbytes]
        self._count()
        if not self._head:
            self._read_head()
        elif self._arrived and not self._arrived.done():
            self._arrived.set_result(None)
        if self._head and (self._body.is_complete or len(self._data) >= BODY_READ_BYTES):
            self._pause(bool(self._data))
        elif self._head and isinstance(self._body, ChunkedBody):
            self._pause(True)  # until `receive` wants more: uvloop reads 32 times in a row

    def pause_writing(self) -> None:
        """Make `send` wait until the client has read what was written."""
        self._writable = asyncio.get_running_loop().create_future()
        now = time.monotonic()
        if self._unread_s is None:
            self._unread_s = now
        self._last_read = now, self._num_unread()

    def resume_writing(self) -> None:
        """Resume `send`."""
        if self._writable and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    async def receive(self) -> Mapping[str, Any]:
        """Return the next part of the body (ASGI).

        Raises:
            InvalidRequestError: when its chunks are malformed, or too many.
        """
        while True:
            try:
                part = self._body.take(self._data)
            except MalformedRequestError as error:
                raise InvalidRequestError(
                    f"the body cannot be read: {error}; send it with its content-length"
                ) from None
            self._count()
            if part or self._body.is_complete:
                return {"type": "http.request", "body": part, "more_body": not self._body.is_complete}
            if self._is_closing:
                return {"type": "http.disconnect"}
            if self._expects_continue:
                self._expects_continue = False
                self.transport.write(_CONTINUE)
            self._pause(False)
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a part of the reply, and wait until the system has taken it (ASGI)."""
        assert self._head
        if message["type"] == "http.response.start":
            status, headers = message["status"], message["headers"]
            lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode(), self._front.date]
            lines += [b"%b: %b\r\n" % item for item in headers]
            if (b"connection", b"close") in headers:
                self._head.keeps_alive = False
            elif not self._head.keeps_alive:
                lines.append(b"connection: close\r\n")
            elif self._head.version == "1.0":
                lines.append(b"connection: keep-alive\r\n")
            self._reply_head = b"".join([*lines, b"\r\n"])
            return
        data = b"" if self._head.method == "HEAD" else message.get("body", b"")
        size = TLS_WRITE_BYTES if self._front.tls else len(data) or 1
        for start in range(0, len(data) or 1, size):
            self.transport.writelines([self._reply_head, data[start : start + size]])
            self._reply_head = b""
            if self._writable:
                await self._writable
        self._is_answered = not message.get("more_body", False)

    def _read_head(self) -> None:
        """Start the next request if its head has arrived."""
        data = self._data
        while data.startswith(b"\r\n"):  # RFC 9112, section 2.2
            del data[:2]
        if data in (b"", b"\r"):
            return
        if not 0x41 <= data[0] <= 0x5A:  # no method: TLS, for example
            self._refuse("400 Bad Request", "no HTTP; does the client speak TLS or HTTP/2?")
            return
        found = _HEAD_END.search(data, 0, MAX_HEADER_BYTES)
        if not found:
            if len(data) >= MAX_HEADER_BYTES:
                self._refuse(
                    "431 Request Header Fields Too Large", f"path and headers have more than {MAX_HEADER_BYTES} bytes"
                )
            elif self._num_counted and not self._front.budget.fits(self._name, MAX_HEADER_BYTES):
                self._refuse("503 Service Unavailable", "no memory for long headers; try later")
            return
        head = bytes(data[: found.end()])
        del data[: found.end()]
        self._count()
        try:
            self._start(Head(head))
        except MalformedRequestError as error:
            self._refuse(error.status, str(error))

    def _start(self, head: Head) -> None:
        self._body, self._is_answered, self._is_new = head.body(), False, False
        self._head = head
        self._expects_continue = head.version == "1.1" and b"100-continue" in map(bytes.lower, head.values(b"expect"))
        self._front.waiting.pop(self, None)
        self._task = task = asyncio.get_running_loop().create_task(self._answer(head))
        self._front.tasks.add(task)
        task.add_done_callback(self._front.tasks.discard)

    async def _answer(self, head: Head) -> None:
        try:
            await self._front.app(head.scope(**self._scope), self.receive, self.send)  # type: ignore[arg-type]
        except Exception:
            logger.exception("unexpected error while answering a request")
        self._task = None
        if self._is_closing:
            return
        if not self._is_answered:
            self.abort()
            return
        self._head, self._unread_s, self._since_s = None, None, time.monotonic()
        if not head.keeps_alive:
            self._close()
            return
        self._front.waiting[self] = None
        self._read_head()
        if not self._head:
            self._pause(False)

    def _refuse(self, status: str, reason: str) -> None:
        """Answer a request that cannot be read, and close the connection."""
        if not self._is_closing:
            self._front.refused(status.partition(" ")[0], time.monotonic() - self._since_s)
            headers = f"content-type: text/plain\r\nconnection: close\r\ncontent-length: {len(reason) + 1}"
            self.transport.write(f"HTTP/1.1 {status}\r\n{headers}\r\n\r\n{reason}\n".encode())
            self._body = Body(1)  # whatever follows
            self._close()

    def _close(self) -> None:
        """Close the connection when the client has read the replies, and after the rest of its request."""
        self._is_closing, self._since_s = True, time.monotonic()
        self._forget()
        if self._body.is_complete or not self.transport.can_write_eof():
            self.transport.close()
        else:
            self.transport.write_eof()
            self._pause(False)
        self._front.open.add(self)  # until it is gone

    def _forget(self) -> None:
        self._front.open.discard(self)
        self._front.waiting.pop(self, None)
        self._data.clear()
        self._count()

    def _count(self) -> None:
        """Count what has been received against the memory budget."""
        if (size := len(self._data)) > FREE_BYTES or self._num_counted:
            self._front.budget.add(self._name, size - self._num_counted)
            self._num_counted = size

    def _pause(self, is_paused: bool) -> None:
        """Stop reading, or go on."""
        if is_paused != self._is_paused and not self.transport.is_closing():
            self._is_paused = is_paused
            (self.transport.pause_reading if is_paused else self.transport.resume_reading)()

    def _num_unread(self) -> int:
        """Return the bytes that the client has not taken: those here, and those that the system holds for it."""
        unsent = bytearray(4)
        with suppress(OSError):  # a socket that is closed, or has no such number
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, unsent)
        return self.transport.get_write_buffer_size() + int.from_bytes(unsent, sys.byteorder)
