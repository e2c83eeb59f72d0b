"""Steps of every gRPC call, before its message is read and after it was answered.

Each step is called with the call, gRPC's context, and the function that runs the steps after it. `interceptor.py`
lists them in order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Container, Sequence
from typing import Any, Protocol

import grpc
from grpc_health.v1 import health

from serving.core.bearer_tokens import BearerTokens
from serving.core.calls import Call
from serving.core.concurrency import ConcurrencyCounter
from serving.core.errors import (
    REFUSAL_REASONS,
    MessageTooLargeError,
    RefusedError,
    TooManyCallsError,
    TooManyWatchesError,
    UnknownMethodError,
    drop_tracebacks,
    shorten,
)
from serving.core.headers import REQUEST_ID, is_bulk, max_reply_bytes, request_id, trace_context
from serving.core.metrics import Metrics
from serving.core.refusal_pacing import RefusalPacer
from serving.grpc_api.resets import Resets
from serving.grpc_api.rpc_metrics import RpcMetrics
from serving.grpc_api.status import abort

Answer = Callable[[Call, Any], Awaitable[Any]]

MAX_WATCHES, MAX_WATCHES_PER_CONNECTION = 4096, 32
"""Maximum number of health watches, in all and of a connection. Each lasts until its client leaves."""
ROUNDING_S = 0.02
"""Seconds by which a client's deadline may pass before the server's, in addition to a hundredth of the timeout."""
_HEALTH = f"/{health.SERVICE_NAME}/"
_WATCH = f"{_HEALTH}Watch"


def is_health(call: Call) -> bool:
    """Return whether a call asks for the health of the server."""
    return call.path.startswith(_HEALTH)


class Step(Protocol):
    """Step of a call."""

    async def __call__(self, call: Call, context: Any, proceed: Answer) -> Any:
        """Return the reply of `await proceed(call, context)`, or raise an error instead."""


class Identify:
    """Records who calls, the request id, the trace and the deadline. The client gets the request id back."""

    async def __call__(self, call: Call, context: Any, proceed: Answer) -> Any:
        """Fill in the fields of the call, and set its trailing metadata."""
        call.connection = context.peer()
        call.request_id, call.trace_context = request_id(call.headers), trace_context(call.headers)
        remaining_s = context.time_remaining()
        call.deadline_s = None if remaining_s is None else time.monotonic() + remaining_s
        context.set_trailing_metadata(((REQUEST_ID, call.request_id),))
        return await proceed(call, context)


class NotifyObservers:
    """Passes each ended call to the log and the traces, except successful health checks."""

    def __init__(self, observers: Sequence[Callable[[Call], None]]) -> None:
        self._observers = observers

    async def __call__(self, call: Call, context: Any, proceed: Answer) -> Any:
        """Notify the observers when the call has ended."""
        try:
            return await proceed(call, context)
        finally:
            if call.status != "OK" or not is_health(call):
                for observer in self._observers:
                    observer(call)


class CountCalls:
    """Counts started and ended calls, and times them."""

    def __init__(self, metrics: RpcMetrics) -> None:
        self._metrics = metrics

    async def __call__(self, call: Call, context: Any, proceed: Answer) -> Any:
        """Count the start and the end of a call."""
        self._metrics.started(call.path)
        try:
            return await proceed(call, context)
        finally:
            call.end()
            self._metrics.handled(call.path, call.status, call.seconds)


class SendStatus:
    """Converts errors to statuses, and records the status of each call. No other place does."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._pacer = RefusalPacer()
        self._resets = Resets()

    async def __call__(self, call: Call, context: Any, proceed: Answer) -> Any:
        """Answer a call with a reply or a status."""
        try:
            return await self._abort_on_error(call, context, proceed)
        except asyncio.CancelledError as error:
            drop_tracebacks(error)
            self._record_cancellation(call, context.time_remaining())
            raise
        except Exception as error:
            call.status, call.details = (context.code() or grpc.StatusCode.UNKNOWN).name, context.details()
            drop_tracebacks(error)  # gRPC keeps the error that aborts a call, and with it the frames
            raise

    async def _abort_on_error(self, call: Call, context: Any, proceed: Answer) -> Any:
        try:
            return await proceed(call, context)
        except grpc.aio.BaseError:  # the call has its status already
            raise
        except Exception as error:
            if reason := REFUSAL_REASONS.get(type(error)):
                self._metrics.refused(reason)
            if isinstance(error, RefusedError) and not isinstance(error, MessageTooLargeError):
                drop_tracebacks(error)  # frames hold data of the call, which the budget no longer counts
                await self._pacer.wait(call.caller, context.time_remaining())
            await abort(context, error)

    def _record_cancellation(self, call: Call, remaining_s: float | None) -> None:
        timeout_s = None if call.deadline_s is None else call.deadline_s - call.started_s
        code = code_of_cancellation(timeout_s, remaining_s)
        call.status = code.name
        was_early = remaining_s is not None and timeout_s is not None and remaining_s > timeout_s / 2
        if code is grpc.StatusCode.CANCELLED or was_early:
            self._resets.add(call.connection)


class Authenticate:
    """Refuses calls without a valid bearer token."""

    def __init__(self, tokens: BearerTokens | None, *, open_health: bool) -> None:
        """Set the requirements.

        Args:
            tokens: valid tokens; None for an open server.
            open_health: True if the health service needs no token.
        """
        self._tokens = tokens
        self._open_health = open_health

    async def __call__(self, call: Call, context: Any, proceed: Answer) -> Any:
        """Record the client, or raise UnauthenticatedError."""
        if self._tokens and not (self._open_health and is_health(call)):
            call.client = self._tokens.client(call.authorizations)
        return await proceed(call, context)


class ReadHeaders:
    """Reads the priority, and the size of the largest reply that the client accepts."""

    async def __call__(self, call: Call, context: Any, proceed: Answer) -> Any:
        """Record the headers, or raise InvalidRequestError."""
        call.is_bulk, call.max_reply_bytes = is_bulk(call.headers), max_reply_bytes(call.headers)
        return await proceed(call, context)


class CheckMethod:
    """Refuses calls of unknown methods."""

    def __init__(self, known: Container[str]) -> None:
        self._known = known

    async def __call__(self, call: Call, context: Any, proceed: Answer) -> Any:
        """Proceed if the method is known, or raise UnknownMethodError."""
        if call.path not in self._known:
            raise UnknownMethodError(shorten(f"no such method: `{call.path}`"))
        return await proceed(call, context)


class LimitCalls:
    """Limits the concurrent calls of each client, and the open health watches."""

    def __init__(self, max_per_client: int | None) -> None:
        """Set the limit.

        Args:
            max_per_client: maximum number of concurrent calls of a token, or of an address without tokens; None for no
                limit. It does not apply to health checks.
        """
        self._max_per_client = max_per_client
        self._calls = ConcurrencyCounter()
        self._watches = ConcurrencyCounter()

    async def __call__(self, call: Call, context: Any, proceed: Answer) -> Any:
        """Count a call while it runs, or raise TooManyCallsError or TooManyWatchesError."""
        if call.path == _WATCH:
            self._check_watches(call.connection)
            with self._watches.count(call.connection):
                return await proceed(call, context)
        if self._max_per_client is None or is_health(call):
            return await proceed(call, context)
        client = call.client or call.peer
        if self._calls[client] >= self._max_per_client:
            raise TooManyCallsError(
                f"too many concurrent calls of this client (maximum `{self._max_per_client}`); wait for one to end"
            )
        with self._calls.count(client):
            return await proceed(call, context)

    def _check_watches(self, connection: str) -> None:
        """Raise TooManyWatchesError. Each connection may have one watch, since connections are limited, too."""
        num_watches = self._watches[connection]
        is_full = self._watches.total >= MAX_WATCHES or num_watches >= MAX_WATCHES_PER_CONNECTION
        if is_full and num_watches:
            raise TooManyWatchesError("too many health watches; open one per connection")


def code_of_cancellation(timeout_s: float | None, remaining_s: float | None) -> grpc.StatusCode:
    """Return the code of a cancelled call.

    It is DEADLINE_EXCEEDED also if the client's deadline passed slightly before the server's: gRPC rounds up the
    timeout that it sends, by a hundredth at most.

    Args:
        timeout_s: seconds to the deadline when the call began; None for a call without a deadline.
        remaining_s: seconds to the deadline now.
    """
    expired = timeout_s is not None and remaining_s is not None and remaining_s <= 0.01 * timeout_s + ROUNDING_S
    return grpc.StatusCode.DEADLINE_EXCEEDED if expired else grpc.StatusCode.CANCELLED
