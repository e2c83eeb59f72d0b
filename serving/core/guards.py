"""Guards of all fronts: tokens, the limit of each client, delays of refusals; and the record of ended calls."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from serving.core.calls import Call
from serving.core.credentials import BearerTokens
from serving.core.errors import (
    MessageTooLargeError,
    RefusedError,
    ServingError,
    TooManyCallsError,
    drop_tracebacks,
)
from serving.core.metrics import Metrics

RATE = 100.0
"""Refusals per second that are sent without delay. Beyond it, callers that are refused repeatedly have to wait."""
MAX_DELAY_S = 2.0
"""Longest delay of a refusal; also the time for which a caller counts as recently refused."""
MARGIN_S = 0.05
"""Seconds before the deadline of its call at which a delayed refusal is sent, so that it arrives in time."""
MAX_DELAYED = 1000
"""Maximum number of refusals that are delayed at the same time. Further ones are sent immediately."""


class CallMetrics(Protocol):
    """Metrics of the calls of a front."""

    def started(self, path: str) -> None:
        """Count a call of a method that starts."""

    def handled(self, path: str, status: str, seconds: float) -> None:
        """Count a call that has ended."""


@contextmanager
def recorded(call: Call, metrics: CallMetrics, observers: Sequence[Callable[[Call], None]]) -> Iterator[None]:
    """Count and time a call, and pass it to the log and the traces in the end, except a successful health check."""
    metrics.started(call.path)
    try:
        yield
    finally:
        call.end()
        metrics.handled(call.path, call.status, call.seconds)
        if call.status != "OK" or not call.is_health:
            for observer in observers:
                observer(call)


class RefusalPacer:
    """Delays refusals to callers that retry too fast, and spreads them over time."""

    def __init__(self) -> None:
        self._next_s = 0.0
        """Time at which all refusals so far would have been sent at RATE; from a second ago to MAX_DELAY_S ahead."""
        self._last_s: OrderedDict[str, float] = OrderedDict()
        """Time at which each caller was last refused, latest last."""

    def delay_s(self, caller: str, remaining_s: float | None, now_s: float) -> float:
        """Return the seconds to wait before a refusal is sent; 0 or less for none.

        Args:
            caller: token or connection.
            remaining_s: seconds until the deadline of the call; None for a call without one.
            now_s: time on any clock.
        """
        while self._last_s and next(iter(self._last_s.values())) < now_s - MAX_DELAY_S:
            self._last_s.popitem(last=False)
        was_refused = caller in self._last_s
        self._last_s[caller] = now_s
        self._last_s.move_to_end(caller)
        self._next_s = min(max(self._next_s, now_s - 1.0) + 1 / RATE, now_s + MAX_DELAY_S)
        delay_s = min(MAX_DELAY_S, self._next_s - now_s) if was_refused else 0.0
        return delay_s if remaining_s is None else min(delay_s, remaining_s - MARGIN_S)


class ConcurrencyCounter:
    """Number of concurrent calls of each client. Lives in one event loop."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def __getitem__(self, client: str) -> int:
        """Return the number of calls of a client."""
        return self._counts[client]

    @property
    def total(self) -> int:
        """Number of calls of all clients."""
        return self._counts.total()

    @contextmanager
    def count(self, client: str) -> Iterator[None]:
        """Count a call while the context lasts."""
        self._counts[client] += 1
        try:
            yield
        finally:
            self._counts[client] -= 1
            if not self._counts[client]:
                del self._counts[client]


class Guards:
    """Guards that the fronts of a server share, so that its limits hold for all of them together."""

    def __init__(
        self, metrics: Metrics, tokens: BearerTokens | None, *, open_health: bool, max_per_client: int | None
    ) -> None:
        """Set the requirements.

        Args:
            metrics: counts refusals.
            tokens: valid tokens; None for an open server.
            open_health: True if health checks need no token.
            max_per_client: maximum number of concurrent calls of a token, or of an address without tokens; None for no
                limit.
        """
        self._metrics = metrics
        self._tokens = tokens
        self._open_health = open_health
        self._max_per_client = max_per_client
        self._calls = ConcurrencyCounter()
        self._pacer = RefusalPacer()
        self._num_delayed = 0

    def authenticate(self, call: Call) -> None:
        """Record the client of a call.

        Raises:
            UnauthenticatedError: without a valid bearer token.
        """
        if self._tokens and not (self._open_health and call.is_health):
            call.client = self._tokens.client(call.authorizations)

    @contextmanager
    def limit(self, call: Call) -> Iterator[None]:
        """Count a call while it runs, except health checks.

        Raises:
            TooManyCallsError: when its client has too many concurrent calls.
        """
        if self._max_per_client is None or call.is_health:
            yield
            return
        client = call.client or call.network
        if self._calls[client] >= self._max_per_client:
            raise TooManyCallsError(
                f"too many concurrent calls of this client (maximum `{self._max_per_client}`); wait for one to end"
            )
        with self._calls.count(client):
            yield

    async def pace(self, call: Call, error: Exception) -> None:
        """Count the error of a call if it is a refusal. Wait before it is sent if the caller retries too fast."""
        if isinstance(error, ServingError) and error.refusal:
            self._metrics.refused(error.refusal)
        if not isinstance(error, RefusedError) or isinstance(error, MessageTooLargeError):
            return
        drop_tracebacks(error)  # frames hold data of the call, which the budget no longer counts
        now_s = time.monotonic()
        remaining_s = None if call.deadline_s is None else call.deadline_s - now_s
        delay_s = self._pacer.delay_s(call.caller, remaining_s, now_s)
        if delay_s > 0 and self._num_delayed < MAX_DELAYED:
            self._num_delayed += 1
            try:
                await asyncio.sleep(delay_s)
            finally:
                self._num_delayed -= 1
