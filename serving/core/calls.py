"""Record of one call while it runs: caller, headers, limits, sizes, stages, outcome. The same for every protocol."""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import getrandbits
from typing import TypeVar

from serving.core.errors import ExpiredError, InvalidRequestError, MessageTooLargeError, shorten
from serving.core.job import Origin

REQUEST_ID = "x-request-id"
TRACE_CONTEXT = ("traceparent", "tracestate")
PRIORITY, INTERACTIVE, BULK = "priority", "interactive", "bulk"
REPLY_S, REPLY_FRACTION = 0.01, 0.05
"""Time before the deadline at which a best-effort call ends its computation: seconds, and fraction of the time that
the call had."""
MAX_REPLY = "max-reply-bytes"
_HTTP_PRIORITY = re.compile(r"\s*(u=.*|i\b.*)?")
_ID = re.compile(r"[!-~]{1,128}")
"""Printable ASCII without spaces, which fits into a header and a log line."""

T = TypeVar("T")


def reserve_nothing(num_bytes: int) -> None:
    """Reserve nothing: the default of `Call.reserve_memory`."""


def connection_name(host: str, port: int) -> str:
    """Return the name of a client's connection, the same in every front: `ipv4:127.0.0.1:50123`, `ipv6:[::1]:50123`."""
    host = host.removeprefix("::ffff:") if "." in host else host  # IPv4 connection of a dual-stack socket
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


@dataclass(slots=True)
class Stage:
    """Timed part of a call: its start on the clock of `time.monotonic`, and its duration."""

    name: str
    started_s: float
    seconds: float


@dataclass(slots=True)
class Call:
    """Record of a call. The front and the inference service fill in its fields while it runs."""

    path: str
    """Service and method of gRPC: `/bertline.v1.Encoder/Embed`; method and route of HTTP: `POST /v1/embed`."""
    is_health: bool = False
    """True if the call asks for the health of the server."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers (metadata in gRPC), with lower-case names."""
    authorizations: Sequence[str] = ()
    """All values of the header `authorization`. Only calls with exactly one are authenticated."""
    client: str = ""
    """Digest of the bearer token; empty without tokens."""
    started_s: float = field(default_factory=time.monotonic)
    is_bulk: bool = False
    """True if the call gives way to interactive calls (header `priority`)."""
    max_reply_bytes: int | None = None
    """Size of the largest reply that the client accepts (header `max-reply-bytes`); None if unknown."""
    connection: str = ""
    """Address and port of the client, as `connection_name` writes them."""
    deadline_s: float | None = None
    """Deadline in seconds on the clock of `time.monotonic`; None without one."""
    reserve_memory: Callable[[int], None] = reserve_nothing
    """Function that reserves bytes of the memory budget until the call ends. It raises NoRoomError if too few are free.
    Only for the event loop."""
    reserved_bytes: int = 0
    """Bytes of the memory budget that this call has reserved."""
    reply_factor: int = 1
    """Bytes of the reply, as the front writes it, per byte of its message, at most."""
    model: str = ""
    space: str = ""
    """Space of the model's vectors; empty if it is not known."""
    num_inputs: int = 0
    num_tokens: int = 0
    from_cache: bool = False
    request_bytes: int = 0
    """Size of the request, decompressed."""
    reply_bytes: int = 0
    stages: list[Stage] = field(default_factory=list)
    status: str = "OK"
    """Name of the final status, such as `OK` or `INVALID_ARGUMENT`."""
    details: str = ""
    """Message of the status, unless it is OK."""
    seconds: float = 0.0
    has_ended: bool = False
    """True once nobody waits for the work that threads still do for the call."""
    request_id: str = field(init=False)
    """Request id that the caller sent, or a new one if it sent none or an unusable one."""

    def __post_init__(self) -> None:
        sent = self.headers.get(REQUEST_ID, "")
        self.request_id = sent if _ID.fullmatch(sent) else f"{getrandbits(64):016x}"

    @property
    def trace_context(self) -> dict[str, str]:
        """Headers of the trace that the call belongs to; empty if it belongs to none."""
        if TRACE_CONTEXT[0] not in self.headers:
            return {}
        return {name: self.headers[name] for name in TRACE_CONTEXT if name in self.headers}

    @property
    def peer(self) -> str:
        """Address of the client, without the port."""
        return self.connection.rpartition(":")[0]

    @property
    def network(self) -> str:
        """Address of the client; of IPv6 the first 64 bits: a client has all addresses that begin with them."""
        if not self.peer.startswith("ipv6:"):
            return self.peer
        address = self.peer.removeprefix("ipv6:").strip("[]").partition("%")[0]
        return str(ipaddress.IPv6Network((address, 64), strict=False))

    @property
    def caller(self) -> str:
        """Key of the caller in fair queues: its token, or its connection if the server has no tokens."""
        return self.client or self.connection

    @property
    def origin(self) -> Origin:
        """Caller and priority class, for the scheduler."""
        return Origin(self.caller, self.is_bulk)

    def deadline_for(self, *, best_effort: bool) -> float | None:
        """Return the deadline of the computation: earlier if its results are sent when it passes."""
        if self.deadline_s is None or not best_effort:
            return self.deadline_s
        return self.deadline_s - REPLY_S - REPLY_FRACTION * (self.deadline_s - self.started_s)

    @property
    def method(self) -> str:
        """Name of the method of gRPC: `Embed`; method and route of HTTP: `POST /v1/embed`."""
        return self.path.rpartition("/")[2] if self.path.startswith("/") else self.path

    def read_headers(self) -> None:
        """Record the priority and the size of the largest reply. Ignore priorities of RFC 9218, such as `u=3`.

        Raises:
            InvalidRequestError: when the priority is unknown, or the size is no number.
        """
        priority = self.headers.get(PRIORITY, INTERACTIVE)
        if priority not in (INTERACTIVE, BULK) and not _HTTP_PRIORITY.fullmatch(priority):
            raise InvalidRequestError(f"unknown `{PRIORITY}`: `{priority}`; send `{INTERACTIVE}` or `{BULK}`")
        self.is_bulk = priority == BULK
        if (value := self.headers.get(MAX_REPLY)) is not None:
            self.max_reply_bytes = num_bytes(value)
            if self.max_reply_bytes is None:
                raise InvalidRequestError(shorten(f"`{MAX_REPLY}` must be a number of bytes: `{value}`"))

    def end(self) -> None:
        """Record that the call has ended, and how long it took."""
        self.has_ended = True
        self.reserve_memory = reserve_nothing  # the former function refers to the call: a cycle
        self.seconds = time.monotonic() - self.started_s

    def check(self) -> None:
        """Check that the caller still waits. Long work must call this regularly.

        Raises:
            ExpiredError: when the deadline has passed, or the call was cancelled.
        """
        if self.has_ended or (self.deadline_s is not None and time.monotonic() > self.deadline_s):
            raise ExpiredError("the deadline passed before the reply was ready")

    def check_reply(self, num_bytes: int) -> None:
        """Raise MessageTooLargeError if the client does not accept a reply of this size."""
        if self.max_reply_bytes is not None and num_bytes > self.max_reply_bytes:
            raise MessageTooLargeError(
                f"the reply is too large: `{num_bytes}` bytes (maximum `{self.max_reply_bytes}`, {MAX_REPLY}); "
                "send fewer inputs per call, or let the client receive more"
            )

    def while_pending(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items while the caller waits.

        Raises:
            ExpiredError: as `check`.
        """
        for item in items:
            self.check()
            yield item


def num_bytes(value: str) -> int | None:
    """Return the number of bytes that a header gives; None if it is no such number."""
    return int(value) if value.isascii() and value.isdigit() and len(value) < 20 else None
