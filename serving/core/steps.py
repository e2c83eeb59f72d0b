"""Steps around a call that every front takes: observers, refusals, tokens, headers, the limit of each client.

Each step is called with the call, the front's own context, and the function that runs the steps after it. A front
lists its steps in order; `grpc_api/interceptor.py` is an example.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from serving.core.bearer_tokens import BearerTokens
from serving.core.calls import Call
from serving.core.concurrency import ConcurrencyCounter
from serving.core.errors import (
    REFUSAL_REASONS,
    MessageTooLargeError,
    RefusedError,
    TooManyCallsError,
    drop_tracebacks,
)
from serving.core.headers import is_bulk, max_reply_bytes
from serving.core.metrics import Metrics
from serving.core.refusal_pacing import RefusalPacer

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
            if reason := REFUSAL_REASONS.get(type(error)):
                self._metrics.refused(reason)
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


def create_guards(
    metrics: Metrics, tokens: BearerTokens | None, *, open_health: bool, max_concurrent_per_client: int | None
) -> Guards:
    """Return the shared steps.

    Args:
        metrics: metrics of the server.
        tokens: valid bearer tokens; None for an open server.
        open_health: True if health checks need no token.
        max_concurrent_per_client: maximum number of concurrent calls of a token, or of an address without tokens; None
            for no limit.
    """
    return Guards(
        PaceRefusals(metrics), Authenticate(tokens, open_health=open_health), LimitCalls(max_concurrent_per_client)
    )
