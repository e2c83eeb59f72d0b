"""The one way in to every service of the server: tokens, limits for each client, request ids, counts, logs, traces."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health

from serving.calls import Call, current_call, set_current_call
from serving.errors import (
    InvalidRequestError,
    MessageTooLargeError,
    TooManyCallsError,
    UnauthenticatedError,
    UnreadRepliesError,
    abort,
)
from serving.metrics import Metrics
from serving.tokens import Tokens
from serving.unread import Unread

REQUEST_ID = "x-request-id"
TRACE_CONTEXT = ("traceparent", "tracestate")
PRIORITY, INTERACTIVE, BULK = "priority", "interactive", "bulk"
_HTTP_PRIORITY = re.compile(r"\s*(u=.*|i\b.*)?")
_ID = re.compile(r"[!-~]{1,128}")
"""Printable ASCII without spaces, so that it fits into a header and into a line of the log."""
REASONS: dict[type[Exception], str] = {
    MessageTooLargeError: "message_too_large",
    UnreadRepliesError: "unread_replies",
    TooManyCallsError: "client_concurrency",
}
"""Why a call may not come in, as metrics have it."""
MAX_UNREAD_BYTES = 128 * 2**20
"""Of replies that a connection has not read; then it is answered no more, as it could ask for all memory."""
ROUNDED_S = 0.02
"""By which, beside a hundredth, a client's deadline may come sooner than the server knows of it."""
_HEALTH = f"/{health.SERVICE_NAME}/"

Behaviour = Callable[[Any, Any], Any]


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Every call of every service passes here, before its message is read and after it has ended."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        tokens: Tokens | None = None,
        open_health: bool = False,
        max_concurrent_per_client: int | None = None,
        max_request_bytes: int,
        observers: Sequence[Callable[[Call], None]] = (),
    ) -> None:
        """Make it.

        Args:
            tokens: one of which each call must carry; None for a server that is open.
            open_health: whether the health service needs none.
            max_concurrent_per_client: calls under way at one time, of each token, or address where there are no tokens.
            max_request_bytes: of a message; gRPC's own limit must be above it.
            observers: told of each call that has ended, but of the health service's successes.
        """
        self._metrics = metrics
        self._tokens = tokens
        self._open_health = open_health
        self._max_concurrent = max_concurrent_per_client
        self._max_request_bytes = max_request_bytes
        self._observers = observers
        self._unread = Unread()
        self._under_way: Counter[str] = Counter()
        self._handlers: dict[str, grpc.RpcMethodHandler] = {}
        self._refusing = self._wrap(grpc.stream_stream_rpc_method_handler(_refuse))
        self._unknown = self._wrap(grpc.stream_stream_rpc_method_handler(_unimplemented))

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """The handler of a call; one that refuses it, without reading its message, where it may not come in."""
        call = self._admit(handler_call_details)
        set_current_call(call)
        if call.refusal:
            return self._refusing
        if call.path not in self._handlers:
            handler = await continuation(handler_call_details)
            if handler is None:
                return self._unknown
            self._handlers[call.path] = self._wrap(handler)
        return self._handlers[call.path]

    def _admit(self, details: Any) -> Call:
        metadata = dict(details.invocation_metadata)
        request_id = metadata.get(REQUEST_ID, "")
        call = Call(details.method, request_id if _ID.fullmatch(request_id) else os.urandom(8).hex())
        if TRACE_CONTEXT[0] in metadata:
            call.trace_context = {name: metadata[name] for name in TRACE_CONTEXT if name in metadata}
        if self._tokens and not (self._open_health and _is_health(call)):
            try:
                call.client = self._tokens.client(
                    [value for key, value in details.invocation_metadata if key == "authorization"]
                )
            except UnauthenticatedError as error:
                call.refusal = error
                self._metrics.refused("unauthenticated")
        try:
            call.is_bulk = _is_bulk(metadata.get(PRIORITY, INTERACTIVE))
        except InvalidRequestError as error:
            call.refusal = call.refusal or error
        return call

    def _wrap(self, handler: Any) -> grpc.RpcMethodHandler:
        kind = "_".join(
            "stream" if flag else "unary" for flag in (handler.request_streaming, handler.response_streaming)
        )
        behaviour: Behaviour = getattr(handler, kind)
        if handler.response_streaming:
            behaviour = partial(_write_all, behaviour)

        async def run(request: Any, context: Any) -> Any:
            return await self._run(behaviour, request, context)

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(run, handler.request_deserializer, handler.response_serializer)

    async def _run(self, behaviour: Behaviour, request: Any, context: Any) -> Any:
        call = current_call()
        call.connection = context.peer()
        context.set_trailing_metadata(((REQUEST_ID, call.request_id),))
        self._metrics.started(call.path)
        given_s = context.time_remaining()
        try:
            reply = await self._answer(call, behaviour, request, context)
            call.request_bytes, call.reply_bytes = _size(request), _size(reply)
            self._unread.add(context.peer(), call.reply_bytes)
            return reply
        except asyncio.CancelledError:
            call.code = _code_of_cancellation(given_s, context.time_remaining())
            raise
        except Exception:
            call.code, call.details = context.code() or grpc.StatusCode.UNKNOWN, context.details()
            raise
        finally:
            self._end(call)

    async def _answer(self, call: Call, behaviour: Behaviour, request: Any, context: Any) -> Any:
        if call.refusal or _is_health(call):
            return await behaviour(request, context)
        client = call.client or call.peer
        try:
            self._check(client, request, context)
        except tuple(REASONS) as error:
            self._metrics.refused(REASONS[type(error)])
            await abort(context, error)
        self._under_way[client] += 1
        try:
            return await behaviour(request, context)
        finally:
            self._under_way[client] -= 1
            if not self._under_way[client]:
                del self._under_way[client]

    def _check(self, client: str, request: Any, context: Any) -> None:
        """Raise one of REASONS where a call is more than its client may have."""
        if (size := _size(request)) > self._max_request_bytes:
            raise MessageTooLargeError(
                f"the message is larger than max ({size} bytes vs. {self._max_request_bytes} of --max-request-bytes); "
                "send fewer or shorter inputs per call"
            )
        if (unread := self._unread[context.peer()]) > MAX_UNREAD_BYTES:
            raise UnreadRepliesError(
                f"{unread / 2**20:.0f} MiB of replies wait to be read by this connection; read them before asking more"
            )
        if self._max_concurrent is not None and self._under_way[client] >= self._max_concurrent:
            raise TooManyCallsError(f"{self._max_concurrent} calls of this client are under way; wait for one")

    def _end(self, call: Call) -> None:
        call.has_ended = True
        call.seconds = time.monotonic() - call.started_s
        self._metrics.handled(call.path, call.code, call.seconds)
        if call.code is grpc.StatusCode.OK and _is_health(call):
            return
        for observer in self._observers:
            observer(call)


async def _refuse(requests: Any, context: Any) -> None:
    error = current_call().refusal
    assert error
    await abort(context, error)


async def _unimplemented(requests: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"no such method: `{current_call().path}`")


async def _write_all(behaviour: Behaviour, request: Any, context: Any) -> None:
    """Handlers that stream either generate replies or write them themselves."""
    replies = behaviour(request, context)
    if not hasattr(replies, "__aiter__"):
        await replies
        return
    async for reply in replies:
        await context.write(reply)


def _is_bulk(priority: str) -> bool:
    """Read the class of a call. The header of RFC 9218 has the same name, and `u=3` or the like in it: not for us.

    Raises:
        InvalidRequestError: when there is no such class.
    """
    if priority not in (INTERACTIVE, BULK) and not _HTTP_PRIORITY.fullmatch(priority):
        raise InvalidRequestError(f"unknown `{PRIORITY}`: `{priority}`; send `{INTERACTIVE}` or `{BULK}`")
    return priority == BULK


def _is_health(call: Call) -> bool:
    return call.path.startswith(_HEALTH)


def _size(message: Any) -> int:
    return len(message) if isinstance(message, bytes) else 0


def _code_of_cancellation(given_s: float | None, remaining_s: float | None) -> grpc.StatusCode:
    """DEADLINE_EXCEEDED also where the client saw its deadline pass a little sooner than the server knows: what gRPC
    sends is rounded up, by a hundredth at most.

    Args:
        given_s: what remained when the call began; None for a call without a deadline.
        remaining_s: what remains now.
    """
    expired = given_s is not None and remaining_s is not None and remaining_s <= 0.01 * given_s + ROUNDED_S
    return grpc.StatusCode.DEADLINE_EXCEEDED if expired else grpc.StatusCode.CANCELLED
