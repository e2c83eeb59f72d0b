"""Statuses and faults of a fake server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import grpc

from bertline._protos import Any_, BadRequest, ErrorInfo, Status
from bertline._status import DOMAIN, NUM_VIOLATIONS

_MAX_VIOLATIONS = 50
"""Maximum number of violations in a status, whose size is bounded."""


class Refusal(Exception):
    """Status that a call ends with.

    Args:
        status: name of the gRPC status.
        details: message of the status.
        violations: (field, reason) of each invalid field of the request.
        pushback_ms: milliseconds after which the client may try again; negative for never.
    """

    def __init__(
        self, status: str, details: str, violations: Sequence[tuple[str, str]] = (), pushback_ms: int | None = None
    ) -> None:
        super().__init__(status, details)
        self.code, self.details = grpc.StatusCode[status], details
        self.violations, self.pushback_ms = violations, pushback_ms

    def abort(self, context: grpc.ServicerContext) -> NoReturn:
        """End a call with this status, and keep the trailing metadata that it already has."""
        metadata: list[tuple[str, str | bytes]] = list(context.trailing_metadata() or ())
        if self.violations:
            info, request = ErrorInfo(reason="INVALID_REQUEST", domain=DOMAIN), BadRequest()
            info.metadata.add(key=NUM_VIOLATIONS, value=str(len(self.violations)))
            for field, reason in self.violations[:_MAX_VIOLATIONS]:
                request.field_violations.add(field=field, description=reason)
            status = Status(code=self.code.value[0], message=self.details)
            for name, message in (("BadRequest", request), ("ErrorInfo", info)):
                url = f"type.googleapis.com/google.rpc.{name}"
                status.details.append(Any_(type_url=url, value=message.SerializeToString()))
            metadata.append(("grpc-status-details-bin", status.SerializeToString()))
        if self.pushback_ms is not None:
            metadata.append(("grpc-retry-pushback-ms", str(self.pushback_ms)))
        context.set_trailing_metadata(tuple(metadata))
        context.abort(self.code, self.details)
        raise AssertionError  # abort never returns


@dataclass
class Fault:
    """Fault of calls before they are answered: a refusal, a delay or a lost connection."""

    method: str
    """Name of the RPC; empty for every one."""
    times: int | None
    """Number of calls that fail; None for all until `reset`."""
    after: int = 0
    """Number of calls that pass first."""
    refusal: Refusal | None = None
    delay_s: float = 0.0
    drops: bool = False

    def happens(self) -> bool:
        """Count a call, and return whether it gets this fault."""
        if self.after:
            self.after -= 1
            return False
        self.times = None if self.times is None else self.times - 1
        return True
