"""gRPC statuses -> errors of the client."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from bertline._protos import BadRequest, Status
from bertline.errors import (
    BertlineError,
    ConnectionFailed,
    InvalidInput,
    InvalidItem,
    ModelNotFound,
    Overloaded,
    PermissionDenied,
    ServerError,
    TimedOut,
    Unauthenticated,
)

ERRORS: dict[grpc.StatusCode, tuple[type[BertlineError], str]] = {
    grpc.StatusCode.UNAVAILABLE: (
        ConnectionFailed,
        "no server is available at `{target}` ({details}); {hint}",
    ),
    grpc.StatusCode.DEADLINE_EXCEEDED: (
        TimedOut,
        "no reply from `{target}` within {timeout:g} s ({details}); raise the timeout or send less at once",
    ),
    grpc.StatusCode.INVALID_ARGUMENT: (InvalidInput, "{details}"),
    grpc.StatusCode.NOT_FOUND: (ModelNotFound, "{details}"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (Overloaded, "`{target}` is overloaded ({details}); try again later"),
    grpc.StatusCode.UNAUTHENTICATED: (
        Unauthenticated,
        "`{target}` asks for credentials ({details}); give it as `token`, or in BERTLINE_TOKEN to the command",
    ),
    grpc.StatusCode.PERMISSION_DENIED: (PermissionDenied, "`{target}` does not allow this ({details})"),
}
"""Which error stands for a status, and what it says. Every other status is a ServerError."""

_HEALTH_REFUSED = "health check call failed"
"""What gRPC says of a server that it cannot ask about its health, whatever the reason."""

_HINTS = (
    (r"server is (starting|draining)|is being loaded", "try again"),
    (r"backend unhealthy", "it says that it does not serve, as one that starts, drains or hangs does; try again"),
    (r"Stream removed|[Kk]eepalive|[Pp]ing timeout", "the connection was lost; try again"),
    (r"HTTP proxy", "a proxy of the environment (`http_proxy` or the like) is in between: name the host in `no_proxy`"),
    (r"Hostname Verification", "its certificate does not name this host: name the server as its certificate does"),
    (r"CERTIFICATE_VERIFY_FAILED", "trust who signed its certificate: `credentials`, or --tls-ca of the command"),
    (r"WRONG_VERSION_NUMBER", "it speaks no TLS: leave `credentials`, or --tls-ca of the command, out"),
    (
        r"security handshaker",
        "`credentials`, or the files of --tls-ca, --tls-cert and --tls-key, are no use: they are PEM",
    ),
    (
        r"Socket closed",
        "if it speaks TLS, give `credentials`, or --tls-ca to the command (--tls-cert, too, if it asks for one)",
    ),
    (
        r"Failed parsing HTTP/2|[Hh]ttp1|HTTP/1",
        "what answers there speaks no gRPC: name the server's port, not that of its metrics",
    ),
    (r"", "start one with `python -m serving`, or name its `host:port`"),
)
"""What to do about UNAVAILABLE: that of the first pattern in the details; gRPC tells of TLS in its own words."""

_TOO_LARGE = "larger than max"
"""What gRPC says of a message that it never takes, as servers do of smaller ones that they never take."""
_TOO_MUCH = "`{target}` does not take so much at once ({details}); lower `batch_size`, or shorten the inputs"
"""Of an Overloaded that is final."""
_SERVER_ERROR = (ServerError, "`{target}` failed with {code} ({details})")
_PUSHBACK = "grpc-retry-pushback-ms"
"""When the server wants to be asked again; negative for never (gRFC A6)."""
_MORE = re.compile(r"\(and (?:at least )?(\d+) more\)$")
"""How many fields are wrong beside the three that a message tells: what comes with it may hold fewer."""
ALL_INPUTS = ("inputs", "texts")
"""Fields that hold all inputs of a request: what is wrong with one is that there is too much in it."""
_INPUT_FIELD = re.compile(r"(?:inputs|(text)s)\[(\d+)\](?:\.([\w\[\]]+))?")


def client_error(
    error: grpc.RpcError, *, target: str, timeout: float, first: int = 0, num_inputs: int = 0
) -> BertlineError:
    """The error of ours that says what a gRPC error means.

    Args:
        timeout: seconds that the request was given.
        first: position of the request's first input in the list of the caller.
        num_inputs: inputs of the request.
    """
    code, details = error.code(), " ".join((error.details() or "no details").split())
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in details and num_inputs == 1:
        return InvalidInput.of([InvalidItem(first, "text", f"too large for the server ({details}); shorten it")])
    items = list(_invalid_items(error, first, num_inputs))
    if code is grpc.StatusCode.INVALID_ARGUMENT and items:
        more = _MORE.search(details)
        return InvalidInput.of(items, 3 + int(more[1]) if more else 0)
    if code is grpc.StatusCode.INTERNAL and items:
        return ServerError.of(items)
    error_type, message = ERRORS.get(code, _SERVER_ERROR)
    is_final = error_type is Overloaded and _is_final(error)
    if is_final:
        message = _TOO_MUCH
    if ":" not in target:
        details += "; no port was given, which stands for 443"
    hint = next(hint for pattern, hint in _HINTS if re.search(pattern, details))
    found = error_type(message.format(target=target, timeout=timeout, code=code.name, details=details, hint=hint))
    if isinstance(found, Overloaded):
        found.is_final = is_final
    return found


def _is_final(error: grpc.RpcError) -> bool:
    """Whether what was refused would always be. gRPC itself sends no pushback."""
    says_never = any(key == _PUSHBACK and value == "-1" for key, value in error.trailing_metadata() or ())
    return says_never or _TOO_LARGE in (error.details() or "")


def is_health_refused(error: grpc.RpcError) -> bool:
    """Whether a call was not sent since the server does not tell of its health: most often for want of a token."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and _HEALTH_REFUSED in (error.details() or "")


def _invalid_items(error: grpc.RpcError, first: int, num_inputs: int) -> Iterator[InvalidItem]:
    """The field violations of the status details, positions counted in the list of the caller."""
    for violation in _field_violations(error):
        if match := _INPUT_FIELD.fullmatch(violation.field):
            yield InvalidItem(first + int(match[2]), match[3] or match[1] or "input", violation.description)
        else:
            hint = "; lower `batch_size`" if num_inputs > 1 and violation.field in ALL_INPUTS else ""
            yield InvalidItem(None, violation.field, violation.description + hint)


def _field_violations(error: grpc.RpcError) -> list[Any]:
    packed = [value for key, value in error.trailing_metadata() or () if key == "grpc-status-details-bin"]
    try:
        details = [detail for value in packed for detail in Status.FromString(value).details]
        requests = [item.value for item in details if item.type_url.endswith("/google.rpc.BadRequest")]
        return [violation for value in requests for violation in BadRequest.FromString(value).field_violations]
    except DecodeError:
        return []  # the message of the status still tells what is wrong
