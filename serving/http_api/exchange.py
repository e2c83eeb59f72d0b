"""One HTTP request and its reply, between the web server and the operations; errors as statuses and JSON."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import orjson

from serving.core.calls import Call
from serving.core.errors import (
    ERROR_REASONS,
    INTERNAL_REASON,
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
    shorten,
)

logger = logging.getLogger(__name__)

JSON = "application/json"
HEADER_LENGTH = "inference-header-content-length"
"""Header of Triton's binary tensors: bytes of JSON at the start of a body, before the tensors."""
CODES: dict[ErrorKind, HTTPStatus] = {
    ErrorKind.INVALID_REQUEST: HTTPStatus.BAD_REQUEST,
    ErrorKind.NOT_FOUND: HTTPStatus.NOT_FOUND,
    ErrorKind.UNKNOWN_METHOD: HTTPStatus.NOT_FOUND,
    ErrorKind.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    ErrorKind.FORBIDDEN: HTTPStatus.FORBIDDEN,
    ErrorKind.EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    ErrorKind.DEADLINE: HTTPStatus.GATEWAY_TIMEOUT,
    ErrorKind.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorKind.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
}
SPECIAL_CODES: dict[type[Exception], HTTPStatus] = {
    MessageTooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    TooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ReceivingError: HTTPStatus.REQUEST_TIMEOUT,
    MethodNotAllowedError: HTTPStatus.METHOD_NOT_ALLOWED,
    UnsupportedMediaError: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
}
"""Statuses of errors for which HTTP knows a better one than that of their kind."""
MAX_VIOLATIONS = 100
"""Maximum number of fields that a reply names."""
_OPENAI_TYPES = {HTTPStatus.UNAUTHORIZED: "authentication_error", HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error"}
SERVER_FAULTS = frozenset(str(int(status)) for status in HTTPStatus if status >= 500)
"""Statuses that are errors of the server by OpenTelemetry's conventions for HTTP. The others are the client's."""

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Headers = Sequence[tuple[str, str]]


def do_nothing() -> None:
    """Free nothing."""


@dataclass(frozen=True, slots=True)
class HttpReply:
    """Reply to an HTTP request."""

    data: bytes
    status: HTTPStatus = HTTPStatus.OK
    media_type: str = JSON
    headers: Headers = ()


@dataclass(slots=True)
class Exchange:
    """HTTP request that is being answered."""

    scope: Scope
    """ASGI scope."""
    receive: Receive
    """ASGI function that returns the next part of the body."""
    is_read: bool = False
    """True once the whole body has arrived, so that the connection can carry another request."""
    release: Callable[[], None] = do_nothing
    """Function that frees the memory of the reply, to be called when it has been sent."""
    reply_headers: dict[str, str] = field(default_factory=dict)
    """Headers of every reply, errors included."""

    @property
    def path_parameters(self) -> Mapping[str, str]:
        """Parts of the path that the route names."""
        found: Mapping[str, str] = self.scope.get("path_params", {})
        return found


Answer = Callable[[Any, Call, Exchange], Awaitable[HttpReply]]
"""Function from the body of a request, `body.Body`, to the reply."""
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
    if call.status.isdigit() or call.status == "OK":
        found["http.response.status_code"] = int(HTTPStatus.OK) if call.status == "OK" else int(call.status)
    return found


def status_of(error: Exception) -> HTTPStatus:
    """Return the status of an error; 500 if it is no ServingError."""
    if not isinstance(error, ServingError):
        return HTTPStatus.INTERNAL_SERVER_ERROR
    return SPECIAL_CODES.get(type(error), CODES[error.kind])


def error_reply(error: Exception, body: ErrorBody) -> HttpReply:
    """Return the reply for an error. An error of another class than ServingError is logged."""
    if not isinstance(error, ServingError):
        logger.error("unexpected error", exc_info=error)
    status = status_of(error)
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
    reason = ERROR_REASONS.get(type(error), INTERNAL_REASON)
    found: dict[str, Any] = {"code": int(status), "reason": reason, "message": message_of(error)}
    if violations := violations_of(error):
        found["violations"] = violations
    return {"error": found}


def openai_error(status: HTTPStatus, error: Exception) -> Mapping[str, Any]:
    """Return an error in OpenAI's shape."""
    kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    violations = violations_of(error)
    return {
        "error": {
            "message": message_of(error),
            "type": kind,
            "param": violations[0]["field"] if violations else None,
            "code": ERROR_REASONS.get(type(error), INTERNAL_REASON).lower(),
        }
    }
