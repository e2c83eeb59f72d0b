"""The one way in to every service of the server: tokens, limits for each client, request ids, counts, logs, traces."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from serving.core.bearer_tokens import BearerTokens
from serving.core.budget import Budget
from serving.core.calls import Call
from serving.core.errors import (
    InvalidRequestError,
    MessageTooLargeError,
    NoRoomError,
    NoThreadError,
    ReceivingError,
    RefusedError,
    TooManyCallsError,
    TooManyWatchesError,
    UnauthenticatedError,
    UnknownMethodError,
    UnreadRepliesError,
    drop_tracebacks,
    shorten,
)
from serving.core.metrics import Metrics
from serving.core.refusal_pacing import RefusalPacer
from serving.grpc_api.current import current_call, set_current_call
from serving.grpc_api.receiving import Receiving
from serving.grpc_api.resets import Resets
from serving.grpc_api.rpc_metrics import RpcMetrics
from serving.grpc_api.status import abort
from serving.grpc_api.unread import Unread

REQUEST_ID = "x-request-id"
TRACE_CONTEXT = ("traceparent", "tracestate")
PRIORITY, INTERACTIVE, BULK = "priority", "interactive", "bulk"
MAX_REPLY = "max-reply-bytes"
_HTTP_PRIORITY = re.compile(r"\s*(u=.*|i\b.*)?")
_ID = re.compile(r"[!-~]{1,128}")
"""Printable ASCII without spaces, so that it fits into a header and into a line of the log."""
REASONS: dict[type[Exception], str] = {
    MessageTooLargeError: "message_too_large",
    ReceivingError: "receiving",
    NoRoomError: "no_room",
    NoThreadError: "threads",
    TooManyWatchesError: "watches",
    UnreadRepliesError: "unread_replies",
    TooManyCallsError: "client_concurrency",
    UnauthenticatedError: "unauthenticated",
}
"""Label of each refusal in the metrics."""
MAX_UNREAD_BYTES = 128 * 2**20
"""Bytes of unread replies above which a connection's further calls are refused: it could ask for all memory."""
RETRY_S = 1.0
"""Seconds after which a call that found no room may be tried again."""
SMALL_BYTES = 4096
"""Largest message of calls that stay open, health watches and reflection: they name a service or a symbol."""
MAX_WATCHES, MAX_WATCHES_OF_CONNECTION = 4096, 32
"""Health watches, in all and of a connection; each lasts until its client leaves."""
ROUNDED_S = 0.02
"""Seconds, beside a hundredth of the timeout, by which a client's deadline may pass before the server's."""
_HEALTH = f"/{health.SERVICE_NAME}/"
_WATCH = f"{_HEALTH}Watch"
_SMALL = (_HEALTH, f"/{reflection.SERVICE_NAME}/")

Behaviour = Callable[[Any, Any], Any]
Deserialize = Callable[[bytes], Any]


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Interceptor of all calls of all services: before their message is read, and after they have ended."""

    def __init__(
        self,
        metrics: Metrics,
        rpc_metrics: RpcMetrics,
        *,
        tokens: BearerTokens | None = None,
        open_health: bool = False,
        max_concurrent_per_client: int | None = None,
        max_request_bytes: int,
        receiving: Receiving,
        budget: Budget,
        patience_s: float,
        observers: Sequence[Callable[[Call], None]] = (),
    ) -> None:
        """Make it.

        Args:
            tokens: each call must carry one of them; None for an open server.
            open_health: whether the health service needs no token.
            max_concurrent_per_client: calls under way at one time, of each token, or address where there are no tokens.
            max_request_bytes: of a message; gRPC's own limit must be above it.
            receiving: how messages come.
            budget: for messages that have come, and replies that wait to be read.
            patience_s: a connection that has read nothing for so long may be closed.
            observers: called with each call that has ended, except successful ones of the health service.
        """
        self._metrics = metrics
        self._rpc_metrics = rpc_metrics
        self._tokens = tokens
        self._open_health = open_health
        self._max_concurrent = max_concurrent_per_client
        self._max_request_bytes = max_request_bytes
        self._observers = observers
        self._receiving = receiving
        self._budget = budget
        self._unread = Unread(budget, patience_s)
        self._refusals = RefusalPacer()
        self._resets = Resets()
        self._watches: Counter[str] = Counter()
        self._under_way: Counter[str] = Counter()
        self._handlers: dict[str, grpc.RpcMethodHandler] = {}
        self._nobody = self._wrap(grpc.stream_stream_rpc_method_handler(_nobody))

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Return the handler of a call; one that is not admitted is refused without reading its message."""
        call = self._admit(handler_call_details)
        set_current_call(call)
        if call.refusal:
            return self._nobody
        if call.path not in self._handlers:
            handler = await continuation(handler_call_details)
            if handler is None:
                return self._nobody
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
        try:
            call.is_bulk = _is_bulk(metadata.get(PRIORITY, INTERACTIVE))
            call.max_reply_bytes = _max_reply_bytes(metadata.get(MAX_REPLY))
        except InvalidRequestError as error:
            call.refusal = call.refusal or error
        return call

    def _wrap(self, handler: Any) -> grpc.RpcMethodHandler:
        """Make a handler that reads a message as a stream of one: else gRPC would read it before the gate is asked."""
        kinds = handler.request_streaming, handler.response_streaming
        behaviour: Behaviour = getattr(handler, "_".join("stream" if flag else "unary" for flag in kinds))
        if handler.response_streaming:
            behaviour = partial(_write_all, behaviour)
        deserialize = handler.request_deserializer or _same
        run = self._run_one if not handler.request_streaming else self._run_all

        async def receive_and_run(messages: Any, context: Any) -> Any:
            running = self._run(partial(run, behaviour, deserialize), context)
            del messages, context  # the error of an aborted call refers to this frame, and gRPC's call to that error
            return await running

        kind = "stream_stream" if handler.response_streaming else "stream_unary"
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(receive_and_run, None, handler.response_serializer)

    async def _run(self, answer: Callable[[Call, Any], Awaitable[Any]], context: Any) -> Any:
        call = current_call()
        call.connection = context.peer()
        context.set_trailing_metadata(((REQUEST_ID, call.request_id),))
        self._rpc_metrics.started(call.path)
        given_s = context.time_remaining()
        call.deadline_s = None if given_s is None else time.monotonic() + given_s
        try:
            return await self._answer(call, answer, context)
        except asyncio.CancelledError as error:
            drop_tracebacks(error)
            call.status = _code_of_cancellation(given_s, context.time_remaining()).name
            if call.status == "CANCELLED" or context.time_remaining() > (given_s or 0.0) / 2:
                self._resets.add(call.connection)
            raise
        except Exception as error:
            call.status, call.details = (context.code() or grpc.StatusCode.UNKNOWN).name, context.details()
            drop_tracebacks(error)  # gRPC keeps the one by which calls are aborted, and that keeps all of these
            raise
        finally:
            self._end(call)

    async def _answer(self, call: Call, answer: Callable[[Call, Any], Awaitable[Any]], context: Any) -> Any:
        """The one place where errors become statuses."""
        try:
            return await answer(call, context)
        except grpc.aio.BaseError:  # of a call that has its status
            raise
        except Exception as error:
            if reason := REASONS.get(type(error)):
                self._metrics.refused(reason)
            if isinstance(error, RefusedError) and not isinstance(error, MessageTooLargeError):
                drop_tracebacks(error)  # they hold data of the call, which the budget no longer counts
                await self._refusals.wait(call.caller, context.time_remaining())
            await abort(context, error)

    async def _run_one(self, behaviour: Behaviour, deserialize: Deserialize, call: Call, context: Any) -> Any:
        """Receive the message of a call, and answer it."""
        uncount = self._count(call)
        try:
            raw = await self._receiving.message(call.connection, context)
            call.request_bytes = len(raw)
            self._check(call)
            request = _message(deserialize, raw)
            if not _is_health(call):  # its messages are small, and those of watches are of no use once they are read
                call.hold = partial(self._hold, call)
                call.hold(len(raw))
            del raw
            reply = await behaviour(request, context)
        finally:
            uncount()
            if call.held_bytes:
                self._budget.add(call.connection, -call.held_bytes)
        call.reply_bytes = _size(reply)
        if call.max_reply_bytes is not None and call.reply_bytes > call.max_reply_bytes:
            raise MessageTooLargeError(
                f"the reply is larger than max ({call.reply_bytes} bytes vs. {call.max_reply_bytes} of {MAX_REPLY}); "
                "send fewer inputs per call, or let the client receive more"
            )
        is_first_health = _is_health(call) and not self._unread[call.connection]
        if not is_first_health and not self._unread.fits(call.connection, call.reply_bytes):
            raise NoRoomError(f"no room for a reply of {call.reply_bytes} bytes; try later", retry_s=RETRY_S)
        self._unread.add(call.connection, call.reply_bytes)
        return reply

    async def _run_all(self, behaviour: Behaviour, deserialize: Deserialize, call: Call, context: Any) -> Any:
        """Answer a call whose client sends many messages."""
        if call.refusal:
            raise call.refusal
        if call.path not in self._handlers:
            raise UnknownMethodError(shorten(f"no such method: `{call.path}`"))

        async def requests() -> AsyncIterator[Any]:
            async for raw in self._receiving.messages(call.connection, context):
                call.request_bytes = len(raw)
                self._check(call)
                yield _message(deserialize, raw)

        uncount = self._count(call)
        try:
            return await behaviour(requests(), context)
        finally:
            uncount()

    def _count(self, call: Call) -> Callable[[], None]:
        """Count a call as under way, and return the function that undoes it. Raise one of REASONS where its client has
        as many as it may."""
        client, counts = call.client or call.peer, self._under_way
        if call.path == _WATCH:
            client, counts = call.connection, self._watches
            is_full = sum(counts.values()) >= MAX_WATCHES or counts[client] >= MAX_WATCHES_OF_CONNECTION
            if is_full and counts[client]:  # each connection may have one: connections are bounded, too
                raise TooManyWatchesError("too many watches of health; watch once by connection")
        elif self._max_concurrent is None or _is_health(call):
            return _nothing
        elif counts[client] >= self._max_concurrent:
            raise TooManyCallsError(f"{self._max_concurrent} calls of this client are under way; wait for one")
        counts[client] += 1
        return partial(_uncount, counts, client)

    def _check(self, call: Call) -> None:
        """Raise one of REASONS where a message is more than its client may send."""
        most, of = self._max_request_bytes, "--max-request-bytes"
        if call.path.startswith(_SMALL):
            most, of = min(most, SMALL_BYTES), "such a message"
        if call.request_bytes > most:
            raise MessageTooLargeError(
                f"the message is larger than max ({call.request_bytes} bytes vs. {most} of {of}); "
                "send fewer or shorter inputs per call"
            )
        if (unread := self._unread[call.connection]) > MAX_UNREAD_BYTES:
            raise UnreadRepliesError(
                f"{unread / 2**20:.0f} MiB of replies wait to be read by this connection; read them before asking more"
            )

    def _hold(self, call: Call, num_bytes: int) -> None:
        """Count bytes for a call. A request of any size is taken where no other is held."""
        if self._budget.held > call.held_bytes and not self._budget.fits(call.connection, num_bytes):
            self._unread.make_room()
            raise NoRoomError(
                f"no room for {num_bytes} bytes of a request beside others of its connection; try later, or send "
                "fewer at one time",
                retry_s=RETRY_S,
            )
        self._budget.add(call.connection, num_bytes)
        call.held_bytes += num_bytes

    def _end(self, call: Call) -> None:
        call.end()
        self._rpc_metrics.handled(call.path, call.status, call.seconds)
        if call.status == "OK" and _is_health(call):
            return
        for observer in self._observers:
            observer(call)


async def _nobody(requests: Any, context: Any) -> None:
    """Stand in for a handler where a call is refused or its method is unknown; never called."""


def _message(deserialize: Deserialize, raw: bytes) -> Any:
    try:
        return deserialize(raw)
    except DecodeError:
        raise InvalidRequestError("the message cannot be parsed as a request of this method") from None


async def _write_all(behaviour: Behaviour, request: Any, context: Any) -> None:
    """Write the replies of a streaming handler, which either generates them or writes them itself."""
    replies = behaviour(request, context)
    if not hasattr(replies, "__aiter__"):
        await replies
        return
    async for reply in replies:
        await context.write(reply)


def _is_bulk(priority: str) -> bool:
    """Read the class of a call. Values of the RFC 9218 header of the same name, such as `u=3`, are ignored.

    Raises:
        InvalidRequestError: when there is no such class.
    """
    if priority not in (INTERACTIVE, BULK) and not _HTTP_PRIORITY.fullmatch(priority):
        raise InvalidRequestError(f"unknown `{PRIORITY}`: `{priority}`; send `{INTERACTIVE}` or `{BULK}`")
    return priority == BULK


def _max_reply_bytes(value: str | None) -> int | None:
    """Read the largest reply that a client takes, in bytes; None where it does not say.

    Raises:
        InvalidRequestError: when it is no number.
    """
    if value is not None and not (value.isascii() and value.isdigit() and len(value) < 20):
        raise InvalidRequestError(shorten(f"`{MAX_REPLY}` must be a number of bytes: `{value}`"))
    return None if value is None else int(value)


def _nothing() -> None:
    pass


def _uncount(counts: Counter[str], client: str) -> None:
    counts[client] -= 1
    if not counts[client]:
        del counts[client]


def _same(raw: bytes) -> bytes:
    return raw


def _is_health(call: Call) -> bool:
    return call.path.startswith(_HEALTH)


def _size(message: Any) -> int:
    return len(message) if isinstance(message, bytes) else 0


def _code_of_cancellation(given_s: float | None, remaining_s: float | None) -> grpc.StatusCode:
    """Return the code of a cancelled call: DEADLINE_EXCEEDED also where the client's deadline passed a little before
    the server's, as gRPC rounds up the timeout that it sends, by a hundredth at most.

    Args:
        given_s: what remained when the call began; None for a call without a deadline.
        remaining_s: what remains now.
    """
    expired = given_s is not None and remaining_s is not None and remaining_s <= 0.01 * given_s + ROUNDED_S
    return grpc.StatusCode.DEADLINE_EXCEEDED if expired else grpc.StatusCode.CANCELLED
