"""Errors that callers see, by kind. Each front maps kinds to the codes of its protocol.

ServingError
    InvalidRequestError         a field of the request must be changed
    ModelNotFoundError          no such model or version is loaded
        OtherSpaceError         its vectors are of another space than the request names
    UnknownServiceError         no such service in the health check
    UnknownMethodError          no such method
    MethodNotAllowedError       a route without this HTTP method
    UnsupportedMediaError       a body in another format or encoding than JSON and gzip
    NoMessageError              the call carries no message
    UnauthenticatedError        no valid bearer token
    ForbiddenError              a page of another site, or a name that is not this server's
    UnavailableError            the server starts, drains, or loads the model
    TooManyCallsError           the client has too many concurrent calls
    TooManyWatchesError         too many open health watches
    UnreadRepliesError          the connection does not read its replies
    RefusedError                not enough capacity; may be retried after `retry_s`
        QueueFullError          the estimated wait is too long
        TooLargeError           too much work for one request
        DeadlineTooShortError   the deadline would pass before the reply
        MessageTooLargeError    the request or the reply has too many bytes
        ReceivingError          the message arrives too slowly, or too many do
        NoThreadError           too much work waits for the codec threads
        NoRoomError             the memory for messages is used up
    ExpiredError                the deadline passed
    ComputeError                a model failed
        UnusableOutputError     a model returned NaN or infinity
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from typing import ClassVar

MAX_VIOLATIONS = 10_000
"""Maximum number of violations that are collected for a request. Fronts send far fewer."""
MAX_MESSAGE_BYTES = 1024
"""Maximum size of an error message."""
RETRY_S = 1.0
"""Seconds after which to retry a call that found no memory, no thread or no turn."""
INTERNAL_REASON = "INTERNAL"
"""Reason of an unexpected error."""
ERRORS: list[type[ServingError]] = []
"""Classes of errors that have a reason."""


class ErrorKind(Enum):
    """Kind of an error: what the caller can do about it."""

    INVALID_REQUEST = auto()
    NOT_FOUND = auto()
    UNKNOWN_METHOD = auto()
    UNAUTHENTICATED = auto()
    FORBIDDEN = auto()
    EXHAUSTED = auto()
    """Capacity is short now, or never suffices for a request of this size."""
    DEADLINE = auto()
    UNAVAILABLE = auto()
    INTERNAL = auto()


@dataclass(frozen=True, slots=True)
class Violation:
    """Problem with one field of a request."""

    field: str
    """Path in the request, such as `inputs[3].context`."""
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class ServingError(Exception):
    """Base class of the errors that callers see. Each class with a reason is listed in `ERRORS`."""

    kind: ClassVar[ErrorKind] = ErrorKind.INTERNAL
    reason: ClassVar[str] = INTERNAL_REASON
    """Reason for clients, in the details of the status. Part of the API: only add to them."""
    refusal: ClassVar[str] = ""
    """Label `reason` of the metric `bertline_refused_total`, for calls that are refused before they are handled."""

    def __init_subclass__(cls, *, kind: ErrorKind | None = None, reason: str = "", refusal: str = "") -> None:
        super().__init_subclass__()
        cls.kind, cls.reason, cls.refusal = kind or cls.kind, reason or cls.reason, refusal
        if reason:
            ERRORS.append(cls)


class InvalidRequestError(ServingError, ValueError, kind=ErrorKind.INVALID_REQUEST, reason="INVALID_REQUEST"):
    """Invalid request, which the caller must change. `violations` names the fields, if the error is about fields."""

    def __init__(self, message: str = "", violations: Iterable[Violation] = ()) -> None:
        self.violations = list(islice(violations, MAX_VIOLATIONS))
        num_more = len(self.violations) - 3
        least = "at least " * (len(self.violations) == MAX_VIOLATIONS)
        more = f" (and {least}{num_more} more)" if num_more > 0 else ""
        super().__init__(message or "; ".join(map(str, self.violations[:3])) + more)


class ModelNotFoundError(ServingError, LookupError, kind=ErrorKind.NOT_FOUND, reason="MODEL_NOT_FOUND"):
    """Name or version of a model that is not loaded."""


class OtherSpaceError(ModelNotFoundError, reason="OTHER_SPACE"):
    """Model whose vectors are of another space than the request names."""


class UnknownServiceError(ServingError, LookupError, kind=ErrorKind.NOT_FOUND, reason="SERVICE_NOT_FOUND"):
    """Health check of an unknown service."""


class UnknownMethodError(ServingError, LookupError, kind=ErrorKind.UNKNOWN_METHOD, reason="METHOD_NOT_FOUND"):
    """Call of an unknown method."""


class MethodNotAllowedError(ServingError, kind=ErrorKind.UNKNOWN_METHOD, reason="METHOD_NOT_ALLOWED"):
    """HTTP request of a route with a method that it does not have."""

    def __init__(self, message: str, allowed: str = "") -> None:
        super().__init__(message)
        self.allowed = allowed
        """Methods of the route, separated by commas."""


class UnsupportedMediaError(ServingError, kind=ErrorKind.INVALID_REQUEST, reason="UNSUPPORTED_MEDIA_TYPE"):
    """HTTP body in a format or encoding that the server does not read."""


class NoMessageError(ServingError, ValueError, kind=ErrorKind.INVALID_REQUEST, reason="NO_MESSAGE"):
    """Call whose client sent no message."""


class UnauthenticatedError(
    ServingError, kind=ErrorKind.UNAUTHENTICATED, reason="UNAUTHENTICATED", refusal="unauthenticated"
):
    """Call without a valid bearer token."""


class ForbiddenError(ServingError, kind=ErrorKind.FORBIDDEN, reason="FORBIDDEN", refusal="forbidden"):
    """HTTP request that a page of another site may have made its visitor's browser send."""


class UnavailableError(ServingError, kind=ErrorKind.UNAVAILABLE, reason="NOT_READY"):
    """Call while the server starts or drains, or while the model is being loaded."""


class TooManyCallsError(ServingError, kind=ErrorKind.EXHAUSTED, reason="TOO_MANY_CALLS", refusal="client_concurrency"):
    """More concurrent calls of a client than allowed."""


class TooManyWatchesError(ServingError, kind=ErrorKind.EXHAUSTED, reason="TOO_MANY_WATCHES", refusal="watches"):
    """More open health watches than allowed."""


class UnreadRepliesError(ServingError, kind=ErrorKind.EXHAUSTED, reason="UNREAD_REPLIES", refusal="unread_replies"):
    """Call of a connection that does not read the replies to its earlier calls."""


class RefusedError(ServingError, kind=ErrorKind.EXHAUSTED):
    """Request that was refused before it was computed, for lack of capacity."""

    def __init__(self, message: str, retry_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_s = retry_s
        """Seconds after which to retry; None if a retry would not help."""


class QueueFullError(RefusedError, reason="QUEUE_FULL"):
    """Request whose estimated wait in the queue is too long."""


class TooLargeError(RefusedError, reason="REQUEST_TOO_LARGE"):
    """Request that is too much work even for an empty queue."""


class DeadlineTooShortError(RefusedError, kind=ErrorKind.DEADLINE, reason="DEADLINE_TOO_SHORT"):
    """Request whose deadline would pass before its reply is computed."""


class MessageTooLargeError(RefusedError, reason="MESSAGE_TOO_LARGE", refusal="message_too_large"):
    """Request or reply with more bytes than allowed."""


class ReceivingError(RefusedError, reason="MESSAGE_NOT_RECEIVED", refusal="receiving"):
    """Message that arrives too slowly, or together with too many others."""


class NoThreadError(RefusedError, reason="NO_THREAD", refusal="threads"):
    """Request that would wait too long for a codec thread."""


class NoRoomError(RefusedError, reason="NO_MEMORY", refusal="no_room"):
    """Request or reply that exceeds the memory for messages."""


class ExpiredError(ServingError, kind=ErrorKind.DEADLINE, reason="DEADLINE_EXCEEDED"):
    """Request whose deadline passed before its reply was computed."""


class ComputeError(ServingError, reason="COMPUTE_FAILED"):
    """Failure of a model: an exception, a run that did not end in time, or outputs that cannot be decoded."""


class UnusableOutputError(ComputeError, reason="UNUSABLE_OUTPUT"):
    """Unusable outputs of a model for one input, which `violations` names."""

    def __init__(self, violation: Violation) -> None:
        self.violations = [violation]
        super().__init__(str(violation))


def error_reason(error: Exception) -> str:
    """Return the reason of an error for clients."""
    return error.reason if isinstance(error, ServingError) else INTERNAL_REASON


def error_line(error: BaseException) -> str:
    """Return an error of the user as one line. For a file that cannot be read, it names the file and the reason."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"cannot read `{error.filename}`: {lower_first(error.strerror)}"
    return " ".join(str(error).split()) or type(error).__name__


def lower_first(text: str) -> str:
    """Return a sentence as it stands behind a colon: its first letter in lower case, unless an acronym begins it."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def shorten(message: str) -> str:
    """Cut a message, which may repeat long names from the request, to MAX_MESSAGE_BYTES."""
    return message.encode(errors="replace")[:MAX_MESSAGE_BYTES].decode(errors="ignore")


def drop_tracebacks(error: BaseException | None) -> None:
    """Drop the tracebacks of an error and its causes.

    Futures, errors and frames refer to each other in cycles, and frames refer to requests. With tracebacks, all failed
    requests would stay in memory until the garbage collector runs.
    """
    while error:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
