"""What is known of a call while it runs, and the log of calls that have ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import grpc

from serving.core.job import Origin
from serving.process.logs import LineLimit

logger = logging.getLogger("serving.calls")

MAX_FAILED_PER_S = 50
"""Lines for failed calls; the next line after more of them tells how many were left out."""


def hold_nothing(num_bytes: int) -> None:
    """Count no bytes."""


@dataclass(slots=True)
class Stage:
    """One part of a call's work, on the clock of `time.monotonic`."""

    name: str
    started_s: float
    seconds: float


@dataclass(slots=True)
class Call:
    """One call; the servicer fills in what it learns."""

    path: str
    """As gRPC has it: `/bertline.v1.Encoder/Embed`."""
    request_id: str
    client: str = ""
    """Who calls: a token's digest, else an address."""
    trace_context: dict[str, str] = field(default_factory=dict)
    """`traceparent` and `tracestate`, where they came."""
    refusal: Exception | None = None
    """Why it may not come in."""
    started_s: float = field(default_factory=time.monotonic)
    is_bulk: bool = False
    """Whether it gives way to interactive calls: `priority` in its metadata."""
    max_reply_bytes: int | None = None
    """Largest reply that its client takes, where it says so in its metadata."""
    connection: str = ""
    """Address and port that it came from."""
    deadline_s: float | None = None
    """When the caller gives up, on the clock of `time.monotonic`."""
    hold: Callable[[int], None] = hold_nothing
    """Count bytes for the call until it ends; raises where there is no room for them. For the event loop only."""
    held_bytes: int = 0
    model: str = ""
    num_inputs: int = 0
    num_tokens: int = 0
    from_cache: bool = False
    request_bytes: int = 0
    reply_bytes: int = 0
    stages: list[Stage] = field(default_factory=list)
    code: grpc.StatusCode = grpc.StatusCode.OK
    details: str = ""
    """What the status says, unless it is OK."""
    seconds: float = 0.0
    has_ended: bool = False
    """Nobody waits for what threads still do for it."""

    @property
    def peer(self) -> str:
        """Address, without the port."""
        return self.connection.rpartition(":")[0]

    @property
    def caller(self) -> str:
        """Who shares the server with others: a token, or without tokens a connection."""
        return self.client or self.connection

    @property
    def origin(self) -> Origin:
        """Caller and class, by which the cores are shared."""
        return Origin(self.caller, self.is_bulk)

    @property
    def method(self) -> str:
        """`Embed`."""
        return self.path.rpartition("/")[2]


_current: ContextVar[Call] = ContextVar("call")

set_current_call = _current.set
current_call = _current.get
"""The call that this task handles; threads have to be told."""


class CallLog:
    """A line for each call that has ended: for all, for those that failed, or for none."""

    def __init__(self, which: str) -> None:
        self._all = which == "all"
        self._failed = which != "none"
        self._limit = LineLimit(MAX_FAILED_PER_S)

    def __call__(self, call: Call) -> None:
        """Log a call."""
        if call.code is grpc.StatusCode.OK or _is_watch_left(call):
            if self._all:
                logger.info("call", extra={"fields": _fields(call)})
        elif self._failed and (omitted := self._limit.omitted()) is not None:
            logger.info("call", extra={"fields": _fields(call) | ({"omitted": omitted} if omitted else {})})


def _is_watch_left(call: Call) -> bool:
    """Whether a client that watched the health has gone, as all of them do in the end."""
    return call.method == "Watch" and call.code is grpc.StatusCode.CANCELLED


def _fields(call: Call) -> dict[str, Any]:
    optional = {
        "error": call.details,
        "model": call.model,
        "inputs": call.num_inputs,
        "tokens": call.num_tokens,
        "from_cache": call.from_cache,
        "request_bytes": call.request_bytes,
        "reply_bytes": call.reply_bytes,
        "trace_id": call.trace_context.get("traceparent", "")[3:35],
    }
    return {
        "method": call.method,
        "code": call.code.name,
        "request_id": call.request_id,
        "peer": call.peer,
        **{name: value for name, value in optional.items() if value},
        "ms": _ms(call.seconds),
        **{f"{name}_ms": _ms(seconds) for name, seconds in _durations(call.stages).items()},
    }


def _durations(stages: Sequence[Stage]) -> dict[str, float]:
    """Seconds by name; a call may wait several times."""
    durations: dict[str, float] = {}
    for stage in stages:
        durations[stage.name] = durations.get(stage.name, 0.0) + stage.seconds
    return durations


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
