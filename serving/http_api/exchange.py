"""One HTTP request and its reply, between the web server and the operations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from serving.core.calls import Call

JSON = "application/json"
HEADER_LENGTH = "inference-header-content-length"
"""Header of Triton's binary tensors: bytes of JSON at the start of a body, before the tensors."""

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
