"""Steps around a call that every front takes: observers, refusals, tokens, headers, the limit of each client.

Each step is called with the call, the front's own context, and the function that runs the steps after it. A front
lists its steps in order; `grpc_api/interceptor.py` is an example.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from serving.core.calls import Call, is_bulk, max_reply_bytes
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

Answer = Callable[[Call, Any], Awaitable[Any]]


class Step(Protocol):
    """Step of a call."""

    async def __call__(self, call: Call, context: Any, proceed: Answer) -> Any:
        """Return the reply of `await proceed(call, context)`, or raise an error instead."""


class NotifyObservers:
    """Passes each ended call to the log and the traces, except successful health checks."""

    def __init__(self, observers: Sequence[Callable[[Call], None]]) -> None:
        self._observers = observers

    async def __call__(self, call: Call, context: Any, proceed: Answer) -> Any:
        """Notify the observers when the call has ended."""
        try:
            return await proceed(call, context)
        finally:
            if call.status != "OK" or not call.is_health:
                for observer in self._observers:
                    observer(call)


class CallMetrics(Protocol):
    """Metrics of the calls of a front."""

    def started(self, path: str) -> None:
        """Count a call of a method that starts."""

    def handled(self, path: str, status: str, seconds: float) -> None:
        """Count a call that has ended."""


class CountCalls:
    """Counts started and ended calls, and times them."""

    def __init__(self, metrics: CallMetrics) -> None:
        self._metrics = metrics

    async def __call__(self, call: Call, context: Any, proceed: Answer) -> Any:
        """Count the start and the end of a call."""
        self._metrics.started(call.path)
        try:
            return await proceed(call, context)
        finally:
            call.end()
            self._metrics.handled(call.path, call.status, call.seconds)


class RefusalPacer:
    """Delays refusals to callers that retry too fast, and spreads them over time. Lives in one event loop."""

    def __init__(self) -> None:
        self._next_s = 0.0
        """Time at which all refusals so far would have been sent at RATE; from a second ago to MAX_DELAY_S ahead."""
        self._last_s: OrderedDict[str, float] = OrderedDict()
        """Time at which each caller was last refused, latest last."""
        self._num_delayed = 0

    async def wait(self, caller: str, remaining_s: float | None) -> None:
        """Wait until a refusal may be sent.

        Args:
            caller: token or connection.
            remaining_s: seconds until the deadline of the call; None for a call without one.
        """
        now_s = asyncio.get_running_loop().time()
        while self._last_s and next(iter(self._last_s.values())) < now_s - MAX_DELAY_S:
            self._last_s.popitem(last=False)
        was_refused = caller in self._last_s
        self._last_s[caller] = now_s
        self._last_s.move_to_end(caller)
        self._next_s = min(max(self._next_s, now_s - 1.0) + 1 / RATE, now_s + MAX_DELAY_S)
        delay_s = min(MAX_DELAY_S, self._next_s - now_s)
        if remaining_s is not None:
            delay_s = min(delay_s, remaining_s - MARGIN_S)
        if not was_refused or delay_s <= 0 or self._num_delayed >= MAX_DELAYED:
            return
        self._num_delayed += 1
        try:
            await asyncio.sleep(delay_s)
        finally:
            self._num_delayed -= 1


class PaceRefusals:
    """Counts refusals, and delays those to callers that retry too fast."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._pacer = RefusalPacer()

    async def __call__(self, call: Call, context: Any, proceed: Answer) -> Any:
        """Pass errors on; a RefusedError possibly after a delay."""
        try:
            return await proceed(call, context)
        except Exception as error:
            if isinstance(error, ServingError) and error.refusal:
                self._metrics.refused(error.refusal)
            if isinstance(error, RefusedError) and not isinstance(error, MessageTooLargeError):
                drop_tracebacks(error)  # frames hold data of the call, which the budget no longer counts
                remaining_s = None if call.deadline_s is None else call.deadline_s - time.monotonic()
                await self._pacer.wait(call.caller, remaining_s)
            raise


class Authenticate:
    """Refuses calls without a valid bearer token."""

    def __init__(self, tokens: BearerTokens | None, *, open_health: bool) -> None:
        """Set the requirements.

        Args:
            tokens: valid tokens; None for an open server.
            open_health: True if health checks need no token.
        """
        self._tokens = tokens
        self._open_health = open_health

    async def __call__(self, call: Call, context: Any, proceed: Answer) -> Any:
        """Record the client, or raise UnauthenticatedError."""
        if self._tokens and not (self._open_health and call.is_health):
            call.client = self._tokens.client(call.authorizations)
        return await proceed(call, context)


class ReadHeaders:
    """Reads the priority, and the size of the largest reply that the client accepts."""

    async def __call__(self, call: Call, context: Any, proceed: Answer) -> Any:
        """Record the headers, or raise InvalidRequestError."""
        call.is_bulk, call.max_reply_bytes = is_bulk(call.headers), max_reply_bytes(call.headers)
        return await proceed(call, context)


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


class LimitCalls:
    """Limits the concurrent calls of each client, except health checks."""

    def __init__(self, max_per_client: int | None) -> None:
        """Set the limit.

        Args:
            max_per_client: maximum number of concurrent calls of a token, or of an address without tokens; None for no
                limit.
        """
        self._max_per_client = max_per_client
        self._calls = ConcurrencyCounter()

    async def __call__(self, call: Call, context: Any, proceed: Answer) -> Any:
        """Count a call while it runs, or raise TooManyCallsError."""
        if self._max_per_client is None or call.is_health:
            return await proceed(call, context)
        client = call.client or call.network
        if self._calls[client] >= self._max_per_client:
            raise TooManyCallsError(
                f"too many concurrent calls of this client (maximum `{self._max_per_client}`); wait for one to end"
            )
        with self._calls.count(client):
            return await proceed(call, context)


@dataclass(frozen=True, slots=True)
class Guards:
    """Steps that the fronts of a server share, so that its limits hold for all of them together."""

    pace: PaceRefusals
    authenticate: Authenticate
    limit: LimitCalls
