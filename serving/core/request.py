"""Request whose caller waits for the reply."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from serving.core.calls import Call
from serving.core.errors import ExpiredError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """Serialised request, with its deadline and the record of its call."""

    data: bytes
    deadline_s: float | None
    """Deadline on the clock of `time.monotonic`; None without one."""
    call: Call

    def check(self) -> None:
        """Check that the caller still waits. Long work must call this regularly.

        Raises:
            ExpiredError: when the deadline has passed, or the call was cancelled.
        """
        if self.call.has_ended or (self.deadline_s is not None and time.monotonic() > self.deadline_s):
            raise ExpiredError("the deadline passed before the reply was ready")

    def while_pending(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items while the caller waits.

        Raises:
            ExpiredError: as `check`.
        """
        for item in items:
            self.check()
            yield item
