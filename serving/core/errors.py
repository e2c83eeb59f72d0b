"""Errors that callers see, by kind. Each front maps kinds to the codes of its protocol.

ServingError
    InvalidRequestError         a field of the request must be changed
    ModelNotFoundError          no such model or version is loaded
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

MAX_VIOLATIONS = 10_000
"""Maximum number of violations that are collected for a request. Fronts send far fewer."""
MAX_MESSAGE_BYTES = 1024
"""Maximum size of an error message."""


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
    """Base class of the errors that callers see."""

    kind = ErrorKind.INTERNAL


class InvalidRequestError(ServingError, ValueError):
    """Invalid request, which the caller must change. `violations` names the fields, if the error is about fields."""

    kind = ErrorKind.INVALID_REQUEST

    def __init__(self, message: str = "", violations: Iterable[Violation] = ()) -> None:
        self.violations = list(islice(violations, MAX_VIOLATIONS))
        num_more = len(self.violations) - 3
        least = "at least " * (len(self.violations) == MAX_VIOLATIONS)
        more = f" (and {least}{num_more} more)" if num_more > 0 else ""
        super().__init__(message or "; ".join(map(str, self.violations[:3])) + more)


class ModelNotFoundError(ServingError, LookupError):
    """Name or version of a model that is not loaded."""

    kind = ErrorKind.NOT_FOUND


class UnknownServiceError(ServingError, LookupError):
    """Health check of an unknown service."""

    kind = ErrorKind.NOT_FOUND


class UnknownMethodError(ServingError, LookupError):
    """Call of an unknown method."""

    kind = ErrorKind.UNKNOWN_METHOD


class MethodNotAllowedError(ServingError):
    """HTTP request of a route with a method that it does not have."""

    kind = ErrorKind.UNKNOWN_METHOD

    def __init__(self, message: str, allowed: str = "") -> None:
        super().__init__(message)
        self.allowed = allowed
        """Methods of the route, separated by commas."""


class UnsupportedMediaError(ServingError):
    """HTTP body in a format or encoding that the server does not read."""

    kind = ErrorKind.INVALID_REQUEST


class NoMessageError(ServingError, ValueError):
    """Call whose client sent no message."""

    kind = ErrorKind.INVALID_REQUEST


class UnauthenticatedError(ServingError):
    """Call without a valid bearer token."""

    kind = ErrorKind.UNAUTHENTICATED


class ForbiddenError(ServingError):
    """HTTP request that a page of another site may have made its visitor's browser send."""

    kind = ErrorKind.FORBIDDEN


class UnavailableError(ServingError):
    """Call while the server starts or drains, or while the model is being loaded."""

    kind = ErrorKind.UNAVAILABLE


class TooManyCallsError(ServingError):
    """More concurrent calls of a client than allowed."""

    kind = ErrorKind.EXHAUSTED


class TooManyWatchesError(ServingError):
    """More open health watches than allowed."""

    kind = ErrorKind.EXHAUSTED


class UnreadRepliesError(ServingError):
    """Call of a connection that does not read the replies to its earlier calls."""

    kind = ErrorKind.EXHAUSTED


class RefusedError(ServingError):
    """Request that was refused before it was computed, for lack of capacity."""

    kind = ErrorKind.EXHAUSTED

    def __init__(self, message: str, retry_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_s = retry_s
        """Seconds after which to retry; None if a retry would not help."""


class QueueFullError(RefusedError):
    """Request whose estimated wait in the queue is too long."""


class TooLargeError(RefusedError):
    """Request that is too much work even for an empty queue."""


class DeadlineTooShortError(RefusedError):
    """Request whose deadline would pass before its reply is computed."""

    kind = ErrorKind.DEADLINE


class MessageTooLargeError(RefusedError):
    """Request or reply with more bytes than allowed."""


class ReceivingError(RefusedError):
    """Message that arrives too slowly, or together with too many others."""


class NoThreadError(RefusedError):
    """Request that would wait too long for a codec thread."""


class NoRoomError(RefusedError):
    """Request or reply that exceeds the memory for messages."""


class ExpiredError(ServingError):
    """Request whose deadline passed before its reply was computed."""

    kind = ErrorKind.DEADLINE


class ComputeError(ServingError):
    """Failure of a model: an exception, a run that did not end in time, or outputs that cannot be decoded."""


class UnusableOutputError(ComputeError):
    """Unusable outputs of a model for one input, which `violations` names."""

    def __init__(self, violation: Violation) -> None:
        self.violations = [violation]
        super().__init__(str(violation))


ERROR_REASONS: dict[type[Exception], str] = {
    InvalidRequestError: "INVALID_REQUEST",
    ModelNotFoundError: "MODEL_NOT_FOUND",
    UnknownServiceError: "SERVICE_NOT_FOUND",
    UnknownMethodError: "METHOD_NOT_FOUND",
    MethodNotAllowedError: "METHOD_NOT_ALLOWED",
    UnsupportedMediaError: "UNSUPPORTED_MEDIA_TYPE",
    NoMessageError: "NO_MESSAGE",
    UnauthenticatedError: "UNAUTHENTICATED",
    ForbiddenError: "FORBIDDEN",
    UnavailableError: "NOT_READY",
    TooManyCallsError: "TOO_MANY_CALLS",
    TooManyWatchesError: "TOO_MANY_WATCHES",
    UnreadRepliesError: "UNREAD_REPLIES",
    QueueFullError: "QUEUE_FULL",
    TooLargeError: "REQUEST_TOO_LARGE",
    DeadlineTooShortError: "DEADLINE_TOO_SHORT",
    MessageTooLargeError: "MESSAGE_TOO_LARGE",
    ReceivingError: "MESSAGE_NOT_RECEIVED",
    NoThreadError: "NO_THREAD",
    NoRoomError: "NO_MEMORY",
    ExpiredError: "DEADLINE_EXCEEDED",
    ComputeError: "COMPUTE_FAILED",
    UnusableOutputError: "UNUSABLE_OUTPUT",
}
"""Reason of each error for clients, in the details of its status. Part of the API: only add to it."""
INTERNAL_REASON = "INTERNAL"
"""Reason of an unexpected error."""
REFUSAL_REASONS: dict[type[Exception], str] = {
    UnauthenticatedError: "unauthenticated",
    ForbiddenError: "forbidden",
    TooManyCallsError: "client_concurrency",
    MessageTooLargeError: "message_too_large",
    UnreadRepliesError: "unread_replies",
    ReceivingError: "receiving",
    NoRoomError: "no_room",
    TooManyWatchesError: "watches",
    NoThreadError: "threads",
}
"""Label `reason` of the metric `bertline_refused_total`, for calls that are refused before they are handled."""


def error_line(error: Exception) -> str:
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
