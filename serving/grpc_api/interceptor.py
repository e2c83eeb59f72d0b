"""Interceptor of all gRPC calls: the steps that every call passes, in order, and the metrics of calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote

import grpc
from grpc_health.v1 import health
from prometheus_client import CollectorRegistry, Counter, Histogram

from serving.core.calls import REQUEST_ID, Call, request_id, trace_context
from serving.core.errors import TooManyWatchesError, UnknownMethodError, drop_tracebacks, shorten
from serving.core.metrics import SECONDS
from serving.core.steps import Answer, ConcurrencyCounter, CountCalls, Guards, NotifyObservers, ReadHeaders, Step
from serving.grpc_api.connections import Resets
from serving.grpc_api.messages import Behaviour, Messages
from serving.grpc_api.routing import current_call, set_current_call
from serving.grpc_api.status import abort

MAX_WATCHES, MAX_WATCHES_PER_CONNECTION = 4096, 32
"""Maximum number of health watches, in all and of a connection. Each lasts until its client leaves."""
ROUNDING_S = 0.02
"""Seconds by which a client's deadline may pass before the server's, in addition to a hundredth of the timeout."""
LABELS = ("grpc_service", "grpc_method", "grpc_type")
_HEALTH = f"/{health.SERVICE_NAME}/"
_WATCH = f"{_HEALTH}Watch"


_CODES = {code.name: code.name.title().replace("_", "") for code in grpc.StatusCode} | {"OK": "OK"}
"""Names of codes as dashboards know them: `InvalidArgument`, but `OK` in capitals."""


class RpcMetrics:
    """Counts and times the calls of some services. Calls of other services are not counted."""

    def __init__(self, registry: CollectorRegistry, services: Mapping[str, Iterable[str]]) -> None:
        """Create the series of all methods.

        Args:
            registry: registry of the server's metrics.
            services: full name of each service -> its methods.
        """
        started = Counter("grpc_server_started_total", "RPCs started.", LABELS, registry=registry)
        handled = Counter(
            "grpc_server_handled_total", "RPCs ended, by status.", (*LABELS, "grpc_code"), registry=registry
        )
        handling = Histogram(
            "grpc_server_handling_seconds",
            "From start to end of an RPC.",
            LABELS,
            buckets=SECONDS,
            registry=registry,
        )
        self._started: dict[str, Counter] = {}
        """Series by path of the method, here and below: a look-up by labels takes time."""
        self._handling: dict[str, Histogram] = {}
        self._handled: dict[str, dict[str, Counter]] = {}
        for service, methods in services.items():
            for method in methods:
                path, labels = f"/{service}/{method}", (service, method, "unary")
                self._started[path], self._handling[path] = started.labels(*labels), handling.labels(*labels)
                self._handled[path] = {name: handled.labels(*labels, code) for name, code in _CODES.items()}

    def started(self, path: str) -> None:
        """Count a call of a method, `/service/name`, that starts."""
        if path in self._started:
            self._started[path].inc()

    def handled(self, path: str, status: str, seconds: float) -> None:
        """Count a call that has ended."""
        if path in self._handled:
            self._handling[path].observe(seconds)
            self._handled[path][status].inc()


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
            try:
                return await proceed(call, context)
            except grpc.aio.BaseError:  # the call has its status already
                raise
            except Exception as error:
                await abort(context, error)
        except asyncio.CancelledError as error:
            drop_tracebacks(error)
            remaining_s = context.time_remaining()
            timeout_s = None if call.deadline_s is None else call.deadline_s - call.started_s
            code = code_of_cancellation(timeout_s, remaining_s)
            call.status = code.name
            was_early = remaining_s is not None and timeout_s is not None and remaining_s > timeout_s / 2
            if code is grpc.StatusCode.CANCELLED or was_early:
                self._resets.add(call.connection)
            raise
        except Exception as error:
            call.status, call.details = (context.code() or grpc.StatusCode.UNKNOWN).name, context.details()
            drop_tracebacks(error)  # gRPC keeps the error that aborts a call, and with it the frames
            raise


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
        num_watches = self._watches[call.connection]
        is_full = self._watches.total >= MAX_WATCHES or num_watches >= MAX_WATCHES_PER_CONNECTION
        if is_full and num_watches:  # each connection may have one, since connections are limited, too
            raise TooManyWatchesError("too many health watches; open one per connection")
        with self._watches.count(call.connection):
            return await proceed(call, context)


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


class Interceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Runs the steps of each call around its handler."""

    def __init__(
        self,
        guards: Guards,
        rpc_metrics: RpcMetrics,
        messages: Messages,
        observers: Sequence[Callable[[Call], None]],
    ) -> None:
        """Set up the steps.

        Args:
            guards: steps that all fronts share.
            rpc_metrics: counts and durations of calls.
            messages: receives and answers messages.
            observers: called with each ended call.
        """
        self.num_calls = 0
        """Calls that gRPC has handed over so far."""
        self._handlers: dict[str, grpc.RpcMethodHandler] = {}
        """Wrapped handlers of known methods, by path."""
        self._steps: list[Step] = [
            Identify(),  # request id, trace context, connection, deadline
            NotifyObservers(observers),  # log line and trace, when all is over
            CountCalls(rpc_metrics),
            SendStatus(),  # errors of the steps below -> statuses
            guards.pace,
            guards.authenticate,
            ReadHeaders(),  # priority, largest reply
            CheckMethod(self._handlers),
            LimitWatches(),
            guards.limit,
        ]
        """Steps in their order, outermost first. Then the message is read and answered."""
        self._messages = messages
        self._unknown = self._wrap(grpc.stream_stream_rpc_method_handler(_unknown_method))

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Return the handler of a call, wrapped into the steps."""
        self.num_calls += 1
        path, metadata = handler_call_details.method, handler_call_details.invocation_metadata
        call = Call(path, headers=dict(metadata), is_health=path.startswith(_HEALTH))
        if "authorization" in call.headers:
            call.authorizations = [value for name, value in metadata if name == "authorization"]
        set_current_call(call)
        if path not in self._handlers:
            handler = await continuation(handler_call_details)
            if handler is None:
                return self._unknown
            self._handlers[path] = self._wrap(handler)
        return self._handlers[path]

    def _wrap(self, handler: Any) -> grpc.RpcMethodHandler:
        """Wrap a handler. The result reads a message as a stream of one; else gRPC would read it before the steps."""
        kinds = handler.request_streaming, handler.response_streaming
        behaviour: Behaviour = getattr(handler, "_".join("stream" if flag else "unary" for flag in kinds))
        if handler.response_streaming:
            behaviour = partial(_write_all, behaviour)
        answer_messages = self._messages.answer_all if handler.request_streaming else self._messages.answer_one
        answer: Answer = partial(answer_messages, behaviour, handler.request_deserializer or bytes)
        for step in reversed(self._steps):
            answer = partial(step, proceed=answer)

        async def run_steps(messages: Any, context: Any) -> Any:
            running = answer(current_call(), context)
            del messages, context  # gRPC keeps the error of an aborted call, and with it this frame
            try:
                return await running
            except BaseException as error:
                drop_tracebacks(error)  # releases the frames of the steps, too
                raise

        kind = "stream_stream" if handler.response_streaming else "stream_unary"
        make_handler = getattr(grpc, f"{kind}_rpc_method_handler")
        return make_handler(run_steps, None, handler.response_serializer)


async def _unknown_method(requests: Any, context: Any) -> None:
    """Stand in for the handler of an unknown method. Never called, since CheckMethod refuses the call."""


async def _write_all(behaviour: Behaviour, request: Any, context: Any) -> None:
    """Write the replies of a streaming handler."""
    async for reply in behaviour(request, context):
        await context.write(reply)
