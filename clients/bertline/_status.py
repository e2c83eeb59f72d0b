"""gRPC statuses -> errors of the client."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from bertline._convert import Request
from bertline._protos import BadRequest, ErrorInfo, Status
from bertline.errors import (
    BertlineError,
    ConnectionFailed,
    InvalidInput,
    InvalidItem,
    ModelNotFound,
    OtherSpace,
    Overloaded,
    PermissionDenied,
    ServerError,
    TimedOut,
    Unauthenticated,
)

ERRORS: dict[grpc.StatusCode, tuple[type[BertlineError], str]] = {
    grpc.StatusCode.UNAVAILABLE: (ConnectionFailed, "no server is available at `{target}` ({details}); {hint}"),
    grpc.StatusCode.DEADLINE_EXCEEDED: (
        TimedOut,
        "no reply from `{target}` within {timeout:g} s ({details}); raise the timeout, or send fewer inputs per call",
    ),
    grpc.StatusCode.INVALID_ARGUMENT: (InvalidInput, "{details}"),
    grpc.StatusCode.NOT_FOUND: (ModelNotFound, "{details}"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (Overloaded, "`{target}` is overloaded ({details}); try again later"),
    grpc.StatusCode.UNAUTHENTICATED: (
        Unauthenticated,
        "`{target}` asks for credentials ({details}); give them as `token` (the command: BERTLINE_TOKEN)",
    ),
    grpc.StatusCode.PERMISSION_DENIED: (PermissionDenied, "`{target}` does not allow this ({details})"),
}
"""Error type and message template of each status. Every other status is a ServerError."""
_SERVER_ERROR = (ServerError, "`{target}` failed with {code} ({details})")
_TOO_MUCH = "`{target}` does not accept so much in one message ({details}); lower `batch_size`, or shorten the inputs"
"""Message of an Overloaded that is final."""

REQUEST_ID = "x-request-id"
"""Trailing metadata of every call that reaches a Bertline server."""
_DETAILS = "grpc-status-details-bin"
_PUSHBACK = "grpc-retry-pushback-ms"
"""Milliseconds after which the client may try again; negative for never (gRFC A6)."""
DOMAIN = "bertline"
"""Domain of the google.rpc.ErrorInfo that a server sends with an error."""
MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
"""ErrorInfo reason of a message above the server's limit."""
NUM_VIOLATIONS = "num_violations"
"""ErrorInfo metadata: number of invalid fields. The details name only as many as fit."""
OTHER_SPACE = "OTHER_SPACE"
"""ErrorInfo reason of a model whose vectors are of another space than the request names."""
ALL_INPUTS = ("inputs", "texts")
"""Fields that hold all inputs of a request. A violation of such a field means that the request holds too much."""
_INPUT_FIELD = re.compile(r"(?:inputs|(text)s)\[(\d+)\](?:\.([\w\[\]]+))?")
_DOCUMENT = re.compile(r"documents\[(\d+)\]")
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Environment variables that gRPC reads a proxy from, the first that is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCall:
    """Facts about a failed call, known to the client."""

    target: str
    timeout: float
    """Timeout of the request, in seconds."""
    request: Request
    has_credentials: bool = False
    """True if the channel speaks TLS."""
    was_connected: bool = False
    """True if this client got a reply from the target before."""
    is_not_serving: bool = False
    """True if the server's health service reports that it does not serve."""


@dataclass(frozen=True, slots=True)
class _Details:
    """Typed part of a status: google.rpc messages and metadata."""

    reason: str
    """Reason of the ErrorInfo; empty for statuses of older servers, proxies and gRPC itself."""
    num_violations: int
    violations: Sequence[Any]
    """google.rpc.BadRequest.FieldViolation messages, the first of `num_violations`."""
    is_from_server: bool
    """True if a Bertline server sent the status."""
    is_from_grpc: bool
    """True if gRPC itself made the status, see `_details`."""
    is_permanent: bool
    """True if the server states that trying again does not help."""


def client_error(error: grpc.RpcError, call: FailedCall) -> BertlineError:
    """Return the client's error for a gRPC error."""
    code, details = error.code(), _details(error)
    if _is_too_large(code, details) and call.request.num_parts == 1:
        reason = f"too large for the server ({_message(error)}); shorten it"
        return InvalidInput.of([InvalidItem(call.request.first, "text", reason)])
    items = list(_invalid_items(details.violations, call.request))
    if code is grpc.StatusCode.INVALID_ARGUMENT and items:
        return InvalidInput.of(items, details.num_violations)
    if code is grpc.StatusCode.INTERNAL and items:
        return ServerError.of(items, details.num_violations)
    error_type, template = ERRORS.get(code, _SERVER_ERROR)
    error_type = OtherSpace if details.reason == OTHER_SPACE else error_type
    is_final = error_type is Overloaded and (details.is_permanent or _is_too_large(code, details))
    text = _message_of_call(error, call.target)
    message = (_TOO_MUCH if is_final else template).format(
        target=call.target, timeout=call.timeout, code=code.name, details=text, hint=_hint(details, call)
    )
    found = error_type(message)
    if isinstance(found, Overloaded):
        found.is_final = is_final
    return found


def timeout_error(target: str, timeout: float, cause: BaseException | None = None) -> BertlineError:
    """Return the error for a call that waited for others, as if gRPC had ended it at its timeout.

    Args:
        cause: gRPC error of its request; None if none was sent.
    """
    details = _message_of_call(cause, target) if isinstance(cause, grpc.RpcError) else "Deadline Exceeded"
    error_type, template = ERRORS[grpc.StatusCode.DEADLINE_EXCEEDED]
    return error_type(template.format(target=target, timeout=timeout, details=details))


def may_be_unhealthy(error: grpc.RpcError) -> bool:
    """Return whether gRPC may have failed a call because of the server's health.

    gRPC uses the same status for three cases: the server is NOT_SERVING, refuses health checks, or is absent. If the
    server sent the status itself, the cause is none of them.
    """
    return error.code() is grpc.StatusCode.UNAVAILABLE and not _details(error).is_from_server


def _message(error: grpc.RpcError) -> str:
    return " ".join((error.details() or "no details").split())


def _message_of_call(error: grpc.RpcError, target: str) -> str:
    return _message(error) + ("" if ":" in target else "; no port was given, which stands for 443")


def _is_too_large(code: grpc.StatusCode, details: _Details) -> bool:
    """Return whether the server's limit for the size of a message was exceeded.

    A message slightly above the limit is refused by the server, with an ErrorInfo. A message far above it is refused by
    gRPC on the server's side, and that is the only RESOURCE_EXHAUSTED that gRPC makes here: clients receive and send
    messages of any size, and the server sets no other limit of gRPC's.
    """
    is_exhausted = code is grpc.StatusCode.RESOURCE_EXHAUSTED
    return is_exhausted and (details.reason == MESSAGE_TOO_LARGE or details.is_from_grpc)


def _hint(details: _Details, call: FailedCall) -> str:
    """Return what to do about UNAVAILABLE."""
    if details.is_from_server:
        return "try again"
    if call.is_not_serving:
        return "its health is NOT_SERVING, because it starts, drains or hangs; try again"
    if call.was_connected:
        return "the connection was lost; try again, or check that the server still runs"
    if call.has_credentials:
        hint = (
            "check that a server runs there and speaks TLS, that `credentials` (the command: --tls-ca, --tls-cert, "
            "--tls-key) are PEM and trust the signer of its certificate, and that the certificate names this host"
        )
    else:
        hint = (
            "start one with `bertline serve`, or check its `host:port` (not the port of its metrics); "
            "if it speaks TLS, give `credentials` (the command: --tls-ca)"
        )
    proxy = next((name for name in _PROXIES if os.environ.get(name)), "")
    return hint + (f"; gRPC connects through the proxy of `{proxy}`: name the host in `no_proxy`" if proxy else "")


def _invalid_items(violations: Sequence[Any], request: Request) -> Iterator[InvalidItem]:
    """Yield the violations with positions in the caller's list."""
    for violation in violations:
        if match := _INPUT_FIELD.fullmatch(violation.field):
            index, field = int(match[2]), match[3] or match[1] or "input"
            if not index and request.first_document:
                field = _DOCUMENT.sub(lambda found: f"documents[{int(found[1]) + request.first_document}]", field)
            yield InvalidItem(request.first + index, field, violation.description)
        else:
            hint = "; lower `batch_size`" if request.num_parts > 1 and violation.field in ALL_INPUTS else ""
            yield InvalidItem(None, violation.field, violation.description + hint)


def _details(error: grpc.RpcError) -> _Details:
    """Read the status details and metadata of an error.

    A status without metadata comes from gRPC itself: Bertline servers send a request id with every status, and proxies
    send their own headers.
    """
    metadata = list(error.trailing_metadata() or ())
    info, violations = ErrorInfo(), []
    try:
        packed = [value for key, value in metadata if key == _DETAILS]
        for detail in (detail for value in packed for detail in Status.FromString(value).details):
            if detail.type_url.endswith("/google.rpc.BadRequest"):
                violations += BadRequest.FromString(detail.value).field_violations
            elif detail.type_url.endswith("/google.rpc.ErrorInfo"):
                info = ErrorInfo.FromString(detail.value)
    except DecodeError:
        pass  # the message of the status still states what is wrong
    count = next((entry.value for entry in info.metadata if entry.key == NUM_VIOLATIONS), "")
    return _Details(
        reason=info.reason if info.domain == DOMAIN else "",
        num_violations=max(len(violations), int(count) if count.isdecimal() else 0),
        violations=violations,
        is_from_server=info.domain == DOMAIN or any(key == REQUEST_ID for key, _ in metadata),
        is_from_grpc=not metadata and not error.initial_metadata(),
        is_permanent=any(key == _PUSHBACK and value.startswith("-") for key, value in metadata),
    )
