"""Steps of a request that need HTTP: its headers, its body within limits of size, values, memory and time, its statuses
and metrics."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
import zlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache, lru_cache, partial
from http import HTTPStatus

from prometheus_client import CollectorRegistry, Counter, Histogram

from serving.core.calls import Call, num_bytes
from serving.core.errors import (
    ExpiredError,
    ForbiddenError,
    InvalidRequestError,
    MessageTooLargeError,
    ReceivingError,
    UnsupportedMediaError,
    drop_tracebacks,
    shorten,
)
from serving.core.metrics import SECONDS
from serving.core.request_memory import CALL_BYTES, RequestMemory
from serving.core.service import InferenceService
from serving.http_api.exchange import HEADER_LENGTH, JSON, DisconnectedError, HttpReply, Proceed, Request, error_reply

TIMEOUT = "x-request-timeout-s"
"""Header with the seconds that a client waits."""
SPACE = "x-space"
"""Header of replies with the space of the model's vectors."""
CLIENT_CLOSED = "CANCELLED"
"""Status of a request whose client hung up."""
MIN_COMPRESSED_BYTES = 1024
"""Smallest reply that is compressed."""
_FASTEST = 1
"""Level of compression: vectors hardly get smaller with a higher one."""
_GZIP = re.compile(r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))", re.IGNORECASE)
"""Gzip in the header accept-encoding, unless its quality is 0 (RFC 9110, section 12.5.3)."""
_NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?")
GZIP_WINDOW = 16 + zlib.MAX_WBITS
"""Argument of zlib for the format of gzip."""
MAX_RATIO = 1032
"""Largest ratio at which gzip compresses."""
LABELS = ("http_method", "http_route")
UNKNOWN = "unknown"
"""Route of requests without a route, in metrics."""


class HttpMetrics:
    """Counts and times the requests of the known routes. Others, also malformed ones, count as route `unknown`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        started = Counter("http_server_started_total", "HTTP requests started.", LABELS, registry=registry)
        handled = Counter(
            "http_server_handled_total", "HTTP requests ended, by status.", (*LABELS, "http_status"), registry=registry
        )
        handling = Histogram(
            "http_server_handling_seconds",
            "From start to end of an HTTP request.",
            LABELS,
            buckets=SECONDS,
            registry=registry,
        )
        # The series of a route, `POST /v1/embeddings`: a look-up by labels takes time.
        self._started = cache(lambda path: started.labels(*path.split(" ", 1)))
        self._handled = cache(lambda path, status: handled.labels(*path.split(" ", 1), status))
        self._handling = cache(lambda path: handling.labels(*path.split(" ", 1)))

    def started(self, path: str) -> None:
        """Count a request of a route that starts."""
        self._started(path).inc()

    def handled(self, path: str, status: str, seconds: float) -> None:
        """Count a request that has ended."""
        self._handled(path, "200" if status == "OK" else status).inc()
        self._handling(path).observe(seconds)

    def refused(self, status: str, seconds: float) -> None:
        """Count a request that could not be read."""
        self.started(f"ANY {UNKNOWN}")
        self.handled(f"ANY {UNKNOWN}", status, seconds)


async def send_status(call: Call, request: Request, proceed: Proceed) -> HttpReply:
    """Convert errors to replies, and record the status of the call. No other place does."""
    try:
        reply = await proceed(call, request)
    except (asyncio.CancelledError, DisconnectedError):
        call.status = CLIENT_CLOSED
        raise
    except Exception as error:
        reply = error_reply(error, request.operation.error_body)
        call.details = shorten(str(error))
        drop_tracebacks(error)
    call.status = "OK" if reply.status < HTTPStatus.BAD_REQUEST else str(int(reply.status))
    call.reply_bytes = len(reply.data)
    if call.status == "OK" and call.space:
        request.reply_headers[SPACE] = call.space
    return reply


class OriginChecker:
    """Refuses what pages of other sites make a browser send. Health checks pass."""

    def __init__(self, hosts: Collection[str] | None, origins: Collection[str]) -> None:
        """Set what is allowed.

        Args:
            hosts: names by which the server may be called, besides addresses and localhost; None for any. A page whose
                own name is made to resolve to this server is of the same origin for a browser (DNS rebinding).
            origins: origins of pages that may call; `*` for any.
        """
        self._hosts = None if hosts is None or "*" in hosts else {host.lower() for host in hosts}
        self._origins = origins

    def check(self, call: Call, method: str) -> None:
        """Raise ForbiddenError if the request must not be answered."""
        if not call.is_health:
            self._check_host(call.headers.get("host", ""))
            if method == "POST" and "*" not in self._origins:
                self._check_site(call.headers)

    def _check_host(self, host: str) -> None:
        name = host.rpartition(":")[0] if re.search(r":\d*$", host) else host
        name = name.strip("[]").rstrip(".").lower()
        if self._hosts is None or name in ("", "localhost", *self._hosts) or name.endswith(".localhost"):
            return
        if not _is_address(name):
            raise ForbiddenError(
                f"unknown host: `{name[:80]}`; call the server by its address, or name it with --http-hosts"
            )

    def _check_site(self, headers: Mapping[str, str]) -> None:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if site is None:
            is_own = origin is None or _site(origin.partition("://")[2]) == _site(headers.get("host", ""))
        else:
            is_own = site in ("same-origin", "none")
        if not is_own and origin not in self._origins:
            sender = (origin or site or "")[:80]
            raise ForbiddenError(f"a page of another origin sent this: `{sender}`; name its origin with --http-origins")


@lru_cache(16)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _site(host: str) -> str:
    """Return a host and its port as browsers compare them."""
    return re.sub(r":(80|443)?$", "", host.lower())


async def read_deadline(call: Call, request: Request, proceed: Proceed) -> HttpReply:
    """Read how long the client waits, and cancel the call after that.

    Raises:
        InvalidRequestError: when the header is no number of seconds.
        ExpiredError: when the time has passed.
    """
    if (sent := call.headers.get(TIMEOUT)) is None:
        return await proceed(call, request)
    if not _NUMBER.fullmatch(sent) or not (timeout_s := float(sent)):
        raise InvalidRequestError(f"`{TIMEOUT}` must be a number of seconds above 0: `{sent[:40]}`")
    call.deadline_s = time.monotonic() + timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            return await proceed(call, request)
    except TimeoutError:
        raise ExpiredError(f"the deadline passed before the reply was ready ({TIMEOUT}: {sent})") from None


async def compress_reply(call: Call, request: Request, proceed: Proceed) -> HttpReply:
    """Compress a large reply for clients that accept gzip, if it shrinks."""
    reply = await proceed(call, request)
    request.reply_headers["vary"] = "accept-encoding"
    size = len(reply.data)
    if size < MIN_COMPRESSED_BYTES or not _GZIP.search(call.headers.get("accept-encoding", "")):
        return reply
    data = await request.pool.run(call, size, partial(zlib.compress, reply.data, _FASTEST, GZIP_WINDOW))
    encoding = "content-encoding", "gzip"
    return replace(reply, data=data, headers=[*reply.headers, encoding]) if len(data) < size else reply


class AnswerOperation:
    """Last step: reads the body, counts the call and answers. The memory of both is reserved."""

    def __init__(self, service: InferenceService, memory: RequestMemory, max_bytes: int, receive_s: float) -> None:
        """Set the limits.

        Args:
            service: counts the calls, and refuses them while it is unavailable.
            memory: memory of received requests.
            max_bytes: maximum size of a body, also after decompression.
            receive_s: maximum seconds in which a body must arrive.
        """
        self._service, self._memory = service, memory
        self._max_bytes, self._receive_s = max_bytes, receive_s

    async def __call__(self, call: Call, request: Request) -> HttpReply:
        """Return the reply of the operation.

        Raises:
            NoRoomError: when too much memory is in use for the reply; also as `_read`.
            MessageTooLargeError: when the client does not accept as many bytes; also as `_read`.
        """
        operation = request.operation
        try:
            if operation.method == "POST":
                _check_media_type(call)
            request.data = await self._read(call, request)
            self._service.begin_call(always=operation.is_health)
            reply = await operation.answer(request)
        finally:
            request.data = b""  # a reply that nobody reads must not keep the body, which counts no longer
            self._memory.close(call)
        call.check_reply(len(reply.data))
        if not call.is_health:
            request.release = await self._memory.hold(call.connection, len(reply.data))
        return reply

    async def _read(self, call: Call, request: Request) -> bytes:
        """Return the body of a request, decompressed. Reserve memory for it; a small one waits for it.

        Raises:
            MessageTooLargeError: when it has too many bytes.
            ReceivingError: when it does not arrive in time.
            NoRoomError: when too much memory is in use.
            UnsupportedMediaError: when it is compressed in another way than gzip.
            InvalidRequestError: when it is not gzip although it should be.
            DisconnectedError: when the client hangs up.
        """
        self._memory.open(call)
        coding = call.headers.get("content-encoding", "").lower().removeprefix("x-")
        if coding not in ("", "identity", "gzip"):
            raise UnsupportedMediaError(f"unknown content-encoding: `{coding[:40]}`; send gzip, or plain JSON")
        if length := call.headers.get("content-length"):
            self._check_size(self._max_bytes + 1 if (size := num_bytes(length)) is None else size)
        try:
            async with asyncio.timeout(self._receive_s):
                data = await self._receive(call, request)
        except TimeoutError:
            raise ReceivingError(
                f"the body did not arrive within {self._receive_s:g} s (--receive-s); send it faster"
            ) from None
        call.request_bytes = len(data)
        if num_more := len(data) - call.reserved_bytes:
            await self._memory.reserve(call, num_more)
        if coding == "gzip":
            data = await request.pool.run(call, MAX_RATIO * len(data), partial(self._decompressed, data))
            call.request_bytes = len(data)
            await self._memory.reserve(call, len(data))
        return data

    async def _receive(self, call: Call, request: Request) -> bytes:
        """Return the body of a request. Reserve memory for a large one as it arrives."""
        parts: list[bytes] = []
        size = 0
        while not request.is_read:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise DisconnectedError
            if part := message.get("body", b""):
                size += len(part)
                self._check_size(size)
                if size > CALL_BYTES:
                    call.reserve_memory(size - call.reserved_bytes)
                parts.append(part)
            request.is_read = not message.get("more_body", False)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _decompressed(self, data: bytes) -> bytes:
        decoder = zlib.decompressobj(GZIP_WINDOW)
        try:
            found = decoder.decompress(data, self._max_bytes + 1)
        except zlib.error:
            raise InvalidRequestError("the body is not gzip, although `content-encoding` says so") from None
        self._check_size(len(found))
        if not decoder.eof or decoder.unused_data:
            raise InvalidRequestError("the gzip body is cut off, or followed by other bytes")
        return found

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise MessageTooLargeError(
                f"the body has more than `{self._max_bytes}` bytes (--max-request-bytes); send fewer or shorter inputs "
                "in a request"
            )


def _check_media_type(call: Call) -> None:
    """Raise UnsupportedMediaError if a body is declared as something else than JSON, or JSON with binary tensors."""
    media_type = call.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if media_type not in (JSON, "text/json") and not media_type.endswith("+json") and HEADER_LENGTH not in call.headers:
        raise UnsupportedMediaError(f"the body must be JSON, not `{media_type[:80]}`; send content-type: {JSON}")
