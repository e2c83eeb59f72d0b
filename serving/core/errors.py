"""What may go wrong with a call, and the gRPC status that each becomes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from serving.core.scheduler import (
    ComputeError,
    ExpiredError,
    HopelessError,
    QueueFullError,
    RefusedError,
    TooLargeError,
)

logger = logging.getLogger(__name__)

PUSHBACK = "grpc-retry-pushback-ms"
MAX_MESSAGE_BYTES = 1024
MAX_DETAILS_BYTES = 4096
"""Statuses travel in trailing metadata, of which clients accept 8 KiB; message and details may grow by a half in it."""


@dataclass(frozen=True, slots=True)
class Violation:
    """What is wrong with one field of a request."""

    field: str
    """Path in the request, such as `inputs[3].context`."""
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


MAX_VIOLATIONS = 10_000
"""Most violations of a request that are collected. Far fewer are sent to the client."""


class InvalidRequestError(ValueError):
    """The caller must change the request; `violations` names the fields, where it is about fields."""

    def __init__(self, message: str = "", violations: Iterable[Violation] = ()) -> None:
        self.violations = list(islice(violations, MAX_VIOLATIONS))
        num_more = len(self.violations) - 3
        least = "at least " * (len(self.violations) == MAX_VIOLATIONS)
        more = f" (and {least}{num_more} more)" if num_more > 0 else ""
        super().__init__(message or "; ".join(map(str, self.violations[:3])) + more)


class UnusableOutputError(ComputeError):
    """The output of a model for one input is unusable; `violations` names the input."""

    def __init__(self, violation: Violation) -> None:
        self.violations = [violation]
        super().__init__(str(violation))


class ModelNotFoundError(LookupError):
    """No model, or no version, of that name is loaded."""


class UnauthenticatedError(Exception):
    """The call carries none of the tokens that are asked for."""


class TooManyCallsError(Exception):
    """The client has as many calls under way as it may."""


class UnreadRepliesError(Exception):
    """The connection has not read the replies that it has asked for."""


class TooManyWatchesError(Exception):
    """Too many watches of health are open."""


class ReceivingError(RefusedError):
    """There is no room for a message that is on its way, or it takes too long."""


class NoThreadError(RefusedError):
    """Too many calls or bytes wait for a thread that reads requests."""


class NoRoomError(RefusedError):
    """The messages that the server holds take as much memory as they may."""


class UnknownMethodError(LookupError):
    """No service has a method of that name."""


class NoSuchServiceError(LookupError):
    """No service of that name tells its health."""


class NoMessageError(ValueError):
    """The client ended its side of a call without a message."""


class MessageTooLargeError(RefusedError):
    """A request, or its reply, has more bytes than it may."""


class UnavailableError(Exception):
    """The server is starting or draining."""


def told(error: Exception) -> str:
    """A mistake in one line; of a file that cannot be read, which and why."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"cannot read `{error.filename}`: {error.strerror.lower()}"
    return " ".join(str(error).split()) or type(error).__name__


CODES: dict[type[Exception], grpc.StatusCode] = {
    InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    ModelNotFoundError: grpc.StatusCode.NOT_FOUND,
    UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    TooManyCallsError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    UnreadRepliesError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    MessageTooLargeError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TooManyWatchesError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ReceivingError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    NoThreadError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    NoRoomError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    NoMessageError: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownMethodError: grpc.StatusCode.UNIMPLEMENTED,
    NoSuchServiceError: grpc.StatusCode.NOT_FOUND,
    QueueFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TooLargeError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HopelessError: grpc.StatusCode.DEADLINE_EXCEEDED,
    ExpiredError: grpc.StatusCode.DEADLINE_EXCEEDED,
    UnavailableError: grpc.StatusCode.UNAVAILABLE,
    ComputeError: grpc.StatusCode.INTERNAL,
    UnusableOutputError: grpc.StatusCode.INTERNAL,
}


def status_of(error: Exception) -> grpc.Status:
    """The status that tells a caller of an error; for fields, with a google.rpc.BadRequest that names them.

    Where the violations are too many for the trailing metadata, the first ones are named, and the message tells how
    many there are. An error that nobody foresaw is logged, and INTERNAL.
    """
    code = CODES.get(type(error), grpc.StatusCode.INTERNAL)
    message = str(error)
    if type(error) not in CODES:
        logger.error("unforeseen error", exc_info=error)
        message = "internal error; the log of the server has more"
    status = status_pb2.Status(code=code.value[0], message=cut(message))
    if isinstance(error, InvalidRequestError | UnusableOutputError) and error.violations:
        details = any_pb2.Any()
        details.Pack(_bad_request(error.violations))
        status.details.append(details)
    found = rpc_status.to_status(status)
    if isinstance(error, RefusedError):
        return found._replace(trailing_metadata=(*found.trailing_metadata, _pushback(error)))
    return found


def _pushback(error: RefusedError) -> tuple[str, str]:
    """When a client may try again, for its retry policy (gRFC A6); negative for never."""
    return PUSHBACK, "-1" if error.retry_s is None else str(max(1, round(1e3 * error.retry_s)))


async def abort(context: Any, error: Exception) -> NoReturn:
    """End a call with the status of an error, beside what its trailing metadata hold already."""
    status = status_of(error)
    drop_frames(error)
    metadata = (*context.trailing_metadata(), *status.trailing_metadata)
    await context.abort(status.code, status.details, metadata)
    raise AssertionError  # abort never returns


def drop_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an error and its causes. Futures, errors and frames refer to each other in cycles, and
    frames to requests: all failed requests would stay in memory until the garbage collector runs."""
    while error:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _bad_request(violations: Sequence[Violation]) -> error_details_pb2.BadRequest:
    details = error_details_pb2.BadRequest()
    for violation in violations:
        entry = details.field_violations.add(field=violation.field, description=cut(violation.reason))
        if details.ByteSize() > MAX_DETAILS_BYTES:
            details.field_violations.remove(entry)
            break
    return details


def cut(message: str) -> str:
    """A message that is short enough to travel, whatever names of the caller's it repeats."""
    return message.encode(errors="replace")[:MAX_MESSAGE_BYTES].decode(errors="ignore")
