"""Errors -> HTTP statuses and their JSON."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
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
from serving.http_api.exchange import ErrorBody, HttpReply

logger = logging.getLogger(__name__)

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
