"""Errors -> gRPC statuses."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NoReturn

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from serving.core.calls import Call
from serving.core.errors import (
    ErrorKind,
    InvalidRequestError,
    RefusedError,
    ServingError,
    UnusableOutputError,
    Violation,
    drop_tracebacks,
    error_reason,
    shorten,
)

logger = logging.getLogger(__name__)

CODES: dict[ErrorKind, grpc.StatusCode] = {
    ErrorKind.INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorKind.UNKNOWN_METHOD: grpc.StatusCode.UNIMPLEMENTED,
    ErrorKind.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    ErrorKind.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    ErrorKind.EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorKind.DEADLINE: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorKind.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorKind.INTERNAL: grpc.StatusCode.INTERNAL,
}
DOMAIN = "bertline"
"""Domain of every ErrorInfo."""
PUSHBACK = "grpc-retry-pushback-ms"
MAX_DETAILS_BYTES = 4096
"""Maximum size of the error details. Statuses travel in trailing metadata, of which clients accept 8 KiB; encoding adds
up to a half to message and details."""
SERVER_FAULTS = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"},
)
"""Statuses that are errors of the server by OpenTelemetry's conventions for gRPC. The others are the client's."""


def status_of(error: Exception) -> grpc.Status:
    """Return the status for an error. An error of another class than ServingError is logged and becomes INTERNAL.

    The details hold a google.rpc.ErrorInfo with the reason of the error. If fields are wrong, they also hold a
    google.rpc.BadRequest that names them, or only the first ones if there are too many for the trailing metadata.
    `num_violations` in the metadata of the ErrorInfo is their number, at most MAX_VIOLATIONS.
    """
    is_expected = isinstance(error, ServingError)
    code = CODES[error.kind] if isinstance(error, ServingError) else grpc.StatusCode.INTERNAL
    if not is_expected:
        logger.error("unexpected error", exc_info=error)
    message = str(error) if is_expected else "internal error; see the log of the server"
    status = status_pb2.Status(code=code.value[0], message=shorten(message))
    violations = error.violations if isinstance(error, InvalidRequestError | UnusableOutputError) else []
    info = error_details_pb2.ErrorInfo(reason=error_reason(error), domain=DOMAIN)
    if violations:
        info.metadata["num_violations"] = str(len(violations))
        status.details.add().Pack(_bad_request(violations, MAX_DETAILS_BYTES - info.ByteSize()))
    status.details.add().Pack(info)
    found = rpc_status.to_status(status)
    if isinstance(error, RefusedError):  # when clients retry, by their retry policy (gRFC A6); negative for never
        pushback = "-1" if error.retry_s is None else str(max(1, round(1e3 * error.retry_s)))
        return found._replace(trailing_metadata=(*found.trailing_metadata, (PUSHBACK, pushback)))
    return found


async def abort(context: Any, error: Exception) -> NoReturn:
    """End a call with the status of an error. Keep the trailing metadata that were set before."""
    status = status_of(error)
    drop_tracebacks(error)
    metadata = (*context.trailing_metadata(), *status.trailing_metadata)
    await context.abort(status.code, status.details, metadata)
    raise AssertionError  # abort never returns


def trace_attributes(call: Call) -> dict[str, str | int]:
    """Return the attributes of a call's span that OpenTelemetry's conventions for gRPC ask for."""
    service, _, method = call.path[1:].rpartition("/")
    return {
        "rpc.system": "grpc",
        "rpc.service": service,
        "rpc.method": method,
        "rpc.grpc.status_code": grpc.StatusCode[call.status].value[0],
    }


def _bad_request(violations: Sequence[Violation], max_bytes: int) -> error_details_pb2.BadRequest:
    """Return a message of at most `max_bytes`, with the first of the violations."""
    details = error_details_pb2.BadRequest()
    for violation in violations:
        entry = details.field_violations.add(field=violation.field, description=shorten(violation.reason))
        if details.ByteSize() > max_bytes:
            details.field_violations.remove(entry)
            break
    return details
