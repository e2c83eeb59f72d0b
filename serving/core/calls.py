"""Record of one call while it runs: caller, limits, sizes, stages, outcome. The same for every protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from serving.core.job import Origin


def hold_nothing(num_bytes: int) -> None:
    """Count no bytes."""


@dataclass(slots=True)
class Stage:
    """Part of a call's work, on the clock of `time.monotonic`."""

    name: str
    started_s: float
    seconds: float


@dataclass(slots=True)
class Call:
    """Call. The front and the inference service fill in the fields as they learn them."""

    path: str
    """Service and method: `/bertline.v1.Encoder/Embed`."""
    request_id: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers (metadata in gRPC), with lower-case names."""
    authorizations: Sequence[str] = ()
    """Values of the header `authorization`, of which some calls have several."""
    client: str = ""
    """Digest of the bearer token; empty without tokens."""
    trace_context: dict[str, str] = field(default_factory=dict)
    """Headers `traceparent` and `tracestate`, if they came."""
    started_s: float = field(default_factory=time.monotonic)
    is_bulk: bool = False
    """True if the call gives way to interactive calls (header `priority`)."""
    max_reply_bytes: int | None = None
    """Size of the largest reply that the client accepts (header `max-reply-bytes`); None if unknown."""
    connection: str = ""
    """Address and port of the client."""
    deadline_s: float | None = None
    """Time at which the caller gives up, on the clock of `time.monotonic`."""
    hold: Callable[[int], None] = hold_nothing
    """Counts bytes for the call until it ends; raises NoRoomError. Only for the event loop."""
    held_bytes: int = 0
    model: str = ""
    num_inputs: int = 0
    num_tokens: int = 0
    from_cache: bool = False
    request_bytes: int = 0
    reply_bytes: int = 0
    stages: list[Stage] = field(default_factory=list)
    status: str = "OK"
    """Name of the final status, such as `OK` or `INVALID_ARGUMENT`."""
    details: str = ""
    """Message of the status, unless it is OK."""
    seconds: float = 0.0
    has_ended: bool = False
    """True once nobody waits for the work that threads still do for the call."""

    @property
    def peer(self) -> str:
        """Address of the client, without the port."""
        return self.connection.rpartition(":")[0]

    @property
    def caller(self) -> str:
        """Party that the server shares its time fairly with: a token, or a connection without tokens."""
        return self.client or self.connection

    @property
    def origin(self) -> Origin:
        """Caller and priority class, for the scheduler."""
        return Origin(self.caller, self.is_bulk)

    @property
    def method(self) -> str:
        """Name of the method: `Embed`."""
        return self.path.rpartition("/")[2]

    def end(self) -> None:
        """Record that the call has ended, and how long it took."""
        self.has_ended, self.hold = True, hold_nothing  # the former `hold` refers to the call: a cycle
        self.seconds = time.monotonic() - self.started_s
