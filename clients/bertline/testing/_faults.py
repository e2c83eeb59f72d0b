"""What a fake server does instead of answering."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import grpc

from bertline._protos import Any_, BadRequest, Status

_MAX_DETAILS_BYTES = 4096
"""A server, too, names only as many violations as the trailing metadata have room for."""


class Refusal(Exception):
    """A status that a call ends with.

    Args:
        status: its name.
        violations: of an INVALID_ARGUMENT: field of the request, and what is wrong with it.
        pushback_ms: when the client may try again; negative for never.
    """

    def __init__(
        self,
        status: str,
        details: str,
        violations: Sequence[tuple[str, str]] = (),
        pushback_ms: int | None = None,
    ) -> None:
        super().__init__(status, details)
        self.code = grpc.StatusCode[status]
        self.details = details
        self.violations = violations
        self.pushback_ms = pushback_ms

    def abort(self, context: grpc.ServicerContext) -> NoReturn:
        """End a call with it."""
        metadata: list[tuple[str, str | bytes]] = []
        if self.violations:
            metadata.append(("grpc-status-details-bin", self._packed()))
        if self.pushback_ms is not None:
            metadata.append(("grpc-retry-pushback-ms", str(self.pushback_ms)))
        context.set_trailing_metadata(tuple(metadata))
        context.abort(self.code, self.details)
        raise AssertionError  # abort never returns

    def _packed(self) -> bytes:
        request = BadRequest()
        for place, reason in self.violations:
            violation = request.field_violations.add(field=place, description=reason)
            if request.ByteSize() > _MAX_DETAILS_BYTES:
                request.field_violations.remove(violation)
                break
        detail = Any_(type_url="type.googleapis.com/google.rpc.BadRequest", value=request.SerializeToString())
        return Status(code=self.code.value[0], message=self.details, details=[detail]).SerializeToString()


@dataclass
class Fault:
    """What happens to calls of a method before they are answered."""

    method: str
    """Empty for every method."""
    times: int | None
    """For so many calls; None until `reset`."""
    after: int = 0
    """Calls that pass before it happens."""
    refusal: Refusal | None = None
    delay_s: float = 0.0
    drops: bool = False

    def happens(self) -> bool:
        """Count a call, and tell whether it happens to it."""
        if self.after:
            self.after -= 1
            return False
        self.times = None if self.times is None else self.times - 1
        return True


@dataclass
class Faults:
    """Those that are still to come. Threads may share them."""

    _waiting: list[Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, fault: Fault) -> None:
        """One more, after those of the same kind."""
        with self._lock:
            self._waiting.append(fault)

    def clear(self) -> None:
        """None any more."""
        with self._lock:
            self._waiting.clear()

    def take(self, method: str) -> list[Fault]:
        """What happens to one call: a delay, and then a failure."""
        with self._lock:
            fitting = [fault for fault in self._waiting if fault.method in ("", method)]
            delays = [fault for fault in fitting if fault.delay_s]
            failures = [fault for fault in fitting if not fault.delay_s]
            taken = [fault for fault in delays[:1] + failures[:1] if fault.happens()]
            self._waiting = [fault for fault in self._waiting if fault.times != 0]
            return taken
