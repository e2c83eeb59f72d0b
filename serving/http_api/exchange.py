"""One HTTP request and its reply, between the web server and the operations; errors as statuses and JSON."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

import orjson

from serving.core.calls import Call
from serving.core.codec_pool import CodecPool
from serving.core.errors import (
    ErrorKind,
    InvalidRequestError,
    MessageTooLargeError,
    MethodNotAllowedError,
    ReceivingError,
    RefusedError,
    ServingError,
    TooLargeError,
    UnsupportedMediaError,
    UnusableOutputError,
    error_reason,
    shorten,
)
from serving.http_api.json_pieces import has_few_values, memory_of_values, parse_object

logger = logging.getLogger(__name__)

JSON = "application/json"
HEADER_LENGTH = "inference-header-content-length"
"""Header of Triton's binary tensors: bytes of JSON at the start of a body, before the tensors."""
STATUSES: dict[ErrorKind | type[Exception], HTTPStatus] = {
    ErrorKind.INVALID_REQUEST: HTTPStatus.BAD_REQUEST,
    ErrorKind.NOT_FOUND: HTTPStatus.NOT_FOUND,
    ErrorKind.UNKNOWN_METHOD: HTTPStatus.NOT_FOUND,
    ErrorKind.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    ErrorKind.FORBIDDEN: HTTPStatus.FORBIDDEN,
    ErrorKind.EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    ErrorKind.DEADLINE: HTTPStatus.GATEWAY_TIMEOUT,
    ErrorKind.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorKind.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
    MessageTooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    TooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ReceivingError: HTTPStatus.REQUEST_TIMEOUT,
    MethodNotAllowedError: HTTPStatus.METHOD_NOT_ALLOWED,
    UnsupportedMediaError: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
}
"""Status of each kind of error, and of those for which HTTP knows a better one."""
MAX_VIOLATIONS = 100
"""Maximum number of fields that a reply names."""
SERVER_FAULTS = frozenset(str(int(status)) for status in HTTPStatus if status >= 500)
"""Statuses that are errors of the server by OpenTelemetry's conventions for HTTP. The others are the client's."""

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Headers = Sequence[tuple[str, str]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HttpReply:
    """Reply to an HTTP request."""

    data: bytes
    status: HTTPStatus = HTTPStatus.OK
    media_type: str = JSON
    headers: Headers = ()


class DisconnectedError(Exception):
    """Client that hung up, so that nobody waits for a reply."""


@dataclass(slots=True)
class Request:
    """HTTP request that is being answered."""

    operation: Operation
    call: Call
    scope: Scope
    """ASGI scope."""
    receive: Receive
    """ASGI function that returns the next part of the body."""
    path_parameters: Mapping[str, str]
    """Parts of the path that the route names."""
    pool: CodecPool
    """Threads that parse large bodies, and write large replies."""
    max_values: int
    """Maximum number of strings, objects and lists of the body."""
    data: bytes = b""
    """Body, decompressed, once it was read."""
    is_read: bool = False
    """True once the whole body has arrived, so that the connection can carry another request."""
    release: Callable[[], None] | None = None
    """Function that frees the memory of the reply, to be called when it has been sent."""
    reply_headers: dict[str, str] = field(default_factory=dict)
    """Headers of every reply, errors included."""

    async def read(self, build: Callable[[dict[str, Any]], T], size: int | None = None) -> T:
        """Parse the JSON, and return what `build` makes of its values, in a thread if it is large.

        Args:
            build: checks and converts the values; should not keep them.
            size: size of the JSON, if other bytes follow.

        Raises:
            InvalidRequestError: when it is not a JSON object, or holds too many values.
            NoRoomError: when its values need more memory than is free.
        """
        data, call = self.data[:size], self.call
        if not has_few_values(data):
            count = partial(memory_of_values, data, self.max_values, call.check)
            call.reserve_memory(await self.pool.run(call, len(data), count))
        return await self.pool.run(call, len(data), lambda: build(parse_object(data)))


Proceed = Callable[[Call, Request], Awaitable[HttpReply]]
"""Function that takes a request through the following steps."""
Answer = Callable[[Request], Awaitable[HttpReply]]
"""Function from a request, whose body was read, to the reply."""
ErrorBody = Callable[[HTTPStatus, Exception], Mapping[str, Any]]
"""Function from a status and an error to the JSON of a reply, in the shape that a route's callers know."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Route of the server."""

    method: str
    path: str
    """Path with parameters in braces, `/v2/models/{name}`."""
    answer: Answer
    error_body: ErrorBody
    is_health: bool = False
    """True if it reports the state of the server, and is therefore always answered."""
    is_public: bool = False
    """True if it needs no token: its reply is the same for everyone, and holds nothing of the server."""
    summary: str = ""
    """Summary in one sentence."""
    requests: tuple[type, ...] = ()
    """Types of the JSON that it reads, pydantic models or protobuf messages; empty without a body."""
    reply: type | None = None
    """Protobuf message of the JSON that it returns; None for other JSON."""
    media_type: str = JSON
    """Media type of its replies."""
    max_words: int = 0
    """Number of values that a body may hold besides those of every request."""

    @property
    def name(self) -> str:
        """Method and path, for logs and metrics."""
        return f"{self.method} {self.path}"


def trace_attributes(call: Call) -> dict[str, str | int]:
    """Return the attributes of a call's span that OpenTelemetry's conventions for HTTP ask for."""
    method, _, route = call.path.partition(" ")
    found: dict[str, str | int] = {"http.request.method": method, "http.route": route}
    if (status := "200" if call.status == "OK" else call.status).isdigit():
        found["http.response.status_code"] = int(status)
    return found


def error_reply(error: Exception, body: ErrorBody) -> HttpReply:
    """Return the reply for an error. An error of another class than ServingError is logged, and has status 500."""
    if isinstance(error, ServingError):
        status = STATUSES.get(type(error), STATUSES[error.kind])
    else:
        logger.error("unexpected error", exc_info=error)
        status = HTTPStatus.INTERNAL_SERVER_ERROR
    headers = []
    if isinstance(error, RefusedError) and error.retry_s is not None:
        headers.append(("retry-after", str(max(1, math.ceil(error.retry_s)))))
    if isinstance(error, MethodNotAllowedError):
        headers.append(("allow", error.allowed))
    if status is HTTPStatus.UNAUTHORIZED:
        headers.append(("www-authenticate", "Bearer"))
    return HttpReply(orjson.dumps(body(status, error)), status, headers=headers)


def message_of(error: Exception) -> str:
    """Return the message of an error for callers."""
    return shorten(str(error)) if isinstance(error, ServingError) else "internal error; see the log of the server"


def violations_of(error: Exception) -> list[dict[str, str]]:
    """Return the wrong fields of an error, at most MAX_VIOLATIONS."""
    found = error.violations if isinstance(error, InvalidRequestError | UnusableOutputError) else []
    return [{"field": item.field, "reason": shorten(item.reason)} for item in found[:MAX_VIOLATIONS]]


def own_error(status: HTTPStatus, error: Exception) -> Mapping[str, Any]:
    """Return an error as Bertline's own routes write it."""
    found: dict[str, Any] = {"code": int(status), "reason": error_reason(error), "message": message_of(error)}
    if violations := violations_of(error):
        found["violations"] = violations
    return {"error": found}
