"""Steps of a call that need gRPC: its context, its statuses, its methods, its health watches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container
from typing import Any
from urllib.parse import unquote

import grpc
from grpc_health.v1 import health

from serving.core.calls import Call
from serving.core.concurrency import ConcurrencyCounter
from serving.core.errors import TooManyWatchesError, UnknownMethodError, drop_tracebacks, shorten
from serving.core.headers import REQUEST_ID, request_id, trace_context
from serving.core.steps import Answer
from serving.grpc_api.resets import Resets
from serving.grpc_api.status import abort

MAX_WATCHES, MAX_WATCHES_PER_CONNECTION = 4096, 32
"""Maximum number of health watches, in all and of a connection. Each lasts until its client leaves."""
ROUNDING_S = 0.02
"""Seconds by which a client's deadline may pass before the server's, in addition to a hundredth of the timeout."""
_WATCH = f"/{health.SERVICE_NAME}/Watch"


class Identify:
    """Records who calls, the request id, the trace and the deadline. The client gets the request id back."""

    async def __call__(self, call: Call, context: Any, proceed: Answer) -> Any:
        """Fill in the fields of the call, and set its trailing metadata."""
        call.connection = unquote(context.peer())  # `ipv6:%5B::1%5D:50123`
        call.request_id, call.trace_context = request_id(call.headers), trace_context(call.headers)
        remaining_s = context.time_remaining()
        call.deadline_s = None if remaining_s is None else time.monotonic() + remaining_s
        context.set_trailing_metadata(((REQUEST_ID, call.request_id),))
        return await proceed(call, context)


class SendStatus:
    """Converts errors to statuses, and records the status of each call. No other place does."""

    def __init__(self) -> None:
        self._resets = Resets()

    async def __call__(self, call: Call, context: Any, proceed: Answer) -> Any:
        """Answer a call with a reply or a status."""
        try:
            return await _abort_on_error(call, context, proceed)
        except asyncio.CancelledError as error:
            drop_tracebacks(error)
            self._record_cancellation(call, context.time_remaining())
            raise
        except Exception as error:
            call.status, call.details = (context.code() or grpc.StatusCode.UNKNOWN).name, context.details()
            drop_tracebacks(error)  # gRPC keeps the error that aborts a call, and with it the frames
            raise

    def _record_cancellation(self, call: Call, remaining_s: float | None) -> None:
        timeout_s = None if call.deadline_s is None else call.deadline_s - call.started_s
        code = code_of_cancellation(timeout_s, remaining_s)
        call.status = code.name
        was_early = remaining_s is not None and timeout_s is not None and remaining_s > timeout_s / 2
        if code is grpc.StatusCode.CANCELLED or was_early:
            self._resets.add(call.connection)


class CheckMethod:
    """Refuses calls of unknown methods."""

    def __init__(self, known: Container[str]) -> None:
        self._known = known

    async def __call__(self, call: Call, context: Any, proceed: Answer) -> Any:
        """Proceed if the method is known, or raise UnknownMethodError."""
        if call.path not in self._known:
            raise UnknownMethodError(shorten(f"no such method: `{call.path}`"))
        return await proceed(call, context)


class LimitWatches:
    """Limits the open health watches, in all and of each connection."""

    def __init__(self) -> None:
        self._watches = ConcurrencyCounter()

    async def __call__(self, call: Call, context: Any, proceed: Answer) -> Any:
        """Count a watch while it is open, or raise TooManyWatchesError."""
        if call.path != _WATCH:
            return await proceed(call, context)
        self._check_watches(call.connection)
        with self._watches.count(call.connection):
            return await proceed(call, context)

    def _check_watches(self, connection: str) -> None:
        """Raise TooManyWatchesError. Each connection may have one watch, since connections are limited, too."""
        num_watches = self._watches[connection]
        is_full = self._watches.total >= MAX_WATCHES or num_watches >= MAX_WATCHES_PER_CONNECTION
        if is_full and num_watches:
            raise TooManyWatchesError("too many health watches; open one per connection")


async def _abort_on_error(call: Call, context: Any, proceed: Answer) -> Any:
    try:
        return await proceed(call, context)
    except grpc.aio.BaseError:  # the call has its status already
        raise
    except Exception as error:
        await abort(context, error)


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
