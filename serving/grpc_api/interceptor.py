"""Interceptor of all gRPC calls: what each call passes from its first byte to its status, and the metrics of calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry, Counter, Histogram

from serving.core.calls import REQUEST_ID, Call
from serving.core.errors import (
    RETRY_S,
    InvalidRequestError,
    MessageTooLargeError,
    NoRoomError,
    TooManyWatchesError,
    UnknownMethodError,
    UnreadRepliesError,
    drop_tracebacks,
    shorten,
)
from serving.core.guards import ConcurrencyCounter, Guards, recorded
from serving.core.metrics import SECONDS
from serving.core.request_memory import RequestMemory
from serving.core.service import InferenceService
from serving.endpoints.methods import Method
from serving.endpoints.wire import SerializedRequest
from serving.grpc_api.connections import Resets, UnreadReplies
from serving.grpc_api.receiving import Receiver
from serving.grpc_api.status import abort

MAX_WATCHES, MAX_WATCHES_PER_CONNECTION = 4096, 32
"""Maximum number of health watches, in all and of a connection. Each lasts until its client leaves."""
MAX_UNREAD_BYTES = 128 * 2**20
"""Bytes of unread replies above which further calls of a connection are refused."""
MAX_HEALTH_BYTES = 4096
"""Maximum bytes of a message of health or reflection: a name. Their calls may stay open for long."""
ROUNDING_S = 0.02
"""Seconds by which a client's deadline may pass before the server's, in addition to a hundredth of the timeout."""
LABELS = ("grpc_service", "grpc_method", "grpc_type")
_HEALTH, _REFLECTION = f"/{health.SERVICE_NAME}/", f"/{reflection.SERVICE_NAME}/"
_WATCH = f"{_HEALTH}Watch"

_CODES = {code.name: code.name.title().replace("_", "") for code in grpc.StatusCode} | {"OK": "OK"}
"""Names of codes as dashboards know them: `InvalidArgument`, but `OK` in capitals."""
_current: ContextVar[Call] = ContextVar("call")
"""Call that the current asyncio task handles. Threads get the call as an argument."""
Behaviour = Callable[[Any, Any], Any]
Answer = Callable[[Call, Any], Awaitable[Any]]


def route(
    service: InferenceService,
    descriptor: ServiceDescriptor,
    methods: Mapping[str, Method],
    *,
    always: Collection[str] = (),
) -> grpc.GenericRpcHandler:
    """Return the gRPC handlers of a service, whose methods know no gRPC. The interceptor sends their errors.

    Args:
        service: counts the calls, and refuses them while it is unavailable.
        descriptor: the gRPC service.
        methods: methods by name: request and call -> serialised reply.
        always: names of methods that are answered while the service is unavailable, too.
    """

    def handler(name: str, method: Method) -> grpc.RpcMethodHandler:
        request_type = GetMessageClass(descriptor.methods_by_name[name].input_type)

        async def handle(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
            service.begin_call(always=name in always)
            return await method(SerializedRequest(request_type, data), _current.get())

        return grpc.unary_unary_rpc_method_handler(handle)

    handlers = {name: handler(name, method) for name, method in methods.items()}
    return grpc.method_handlers_generic_handler(descriptor.full_name, handlers)


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
    """Takes each call from its start to its status, around its handler. Counts the memory of requests and replies."""

    def __init__(
        self,
        guards: Guards,
        rpc_metrics: RpcMetrics,
        receiver: Receiver,
        memory: RequestMemory,
        unread: UnreadReplies,
        observers: Sequence[Callable[[Call], None]],
        *,
        max_request_bytes: int,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Set up the parts.

        Args:
            guards: guards that all fronts share.
            rpc_metrics: counts and durations of calls.
            receiver: receives the messages.
            memory: memory of received requests.
            unread: unread replies, which count against the same budget.
            observers: called with each ended call.
            max_request_bytes: maximum size of a request. gRPC's own limit must be above it.
            metadata: trailing metadata of all replies.
        """
        self.num_calls = 0
        """Calls that gRPC has handed over so far."""
        self._guards = guards
        self._rpc_metrics = rpc_metrics
        self._receiver = receiver
        self._memory = memory
        self._unread = unread
        self._observers = observers
        self._max_request_bytes = max_request_bytes
        self._metadata = tuple(metadata)
        self._resets = Resets()
        self._watches = ConcurrencyCounter()
        self._handlers: dict[str, grpc.RpcMethodHandler] = {}
        """Wrapped handlers of known methods, by path."""
        self._unknown = self._wrap(grpc.stream_stream_rpc_method_handler(_unknown_method))

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Return the wrapped handler of a call."""
        self.num_calls += 1
        path, metadata = handler_call_details.method, handler_call_details.invocation_metadata
        call = Call(path, headers=dict(metadata), is_health=path.startswith(_HEALTH))
        if "authorization" in call.headers:
            call.authorizations = [value for name, value in metadata if name == "authorization"]
        _current.set(call)
        if path not in self._handlers:
            handler = await continuation(handler_call_details)
            if handler is None:
                return self._unknown
            self._handlers[path] = self._wrap(handler)
        return self._handlers[path]

    def _wrap(self, handler: Any) -> grpc.RpcMethodHandler:
        """Wrap a handler. The result reads a message as a stream of one; else gRPC would read it before the checks."""
        kinds = handler.request_streaming, handler.response_streaming
        behaviour: Behaviour = getattr(handler, "_".join("stream" if flag else "unary" for flag in kinds))
        if handler.response_streaming:
            behaviour = partial(_write_all, behaviour)
        answer_messages = self._answer_all if handler.request_streaming else self._answer_one
        answer: Answer = partial(answer_messages, behaviour, handler.request_deserializer or bytes)

        async def run(messages: Any, context: Any) -> Any:
            running = self._run(answer, _current.get(), context)
            del messages, context  # gRPC keeps the error of an aborted call, and with it this frame
            try:
                return await running
            except BaseException as error:
                drop_tracebacks(error)  # releases the frames of the call, too
                raise

        kind = "stream_stream" if handler.response_streaming else "stream_unary"
        make_handler = getattr(grpc, f"{kind}_rpc_method_handler")
        return make_handler(run, None, handler.response_serializer)

    async def _run(self, answer: Answer, call: Call, context: Any) -> Any:
        """Answer a call with a reply or a status. No other place converts errors to statuses."""
        call.connection = unquote(context.peer())  # `ipv6:%5B::1%5D:50123`
        remaining_s = context.time_remaining()
        call.deadline_s = None if remaining_s is None else time.monotonic() + remaining_s
        context.set_trailing_metadata(((REQUEST_ID, call.request_id), *self._metadata))
        with recorded(call, self._rpc_metrics, self._observers):
            try:
                try:
                    return await self._check_and_answer(answer, call, context)
                except grpc.aio.BaseError:  # the call has its status already
                    raise
                except Exception as error:
                    await self._guards.pace(call, error)
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

    async def _check_and_answer(self, answer: Answer, call: Call, context: Any) -> Any:
        self._guards.authenticate(call)
        call.read_headers()
        if call.path not in self._handlers:
            raise UnknownMethodError(shorten(f"no such method: `{call.path}`"))
        with self._limit_watches(call), self._guards.limit(call):
            return await answer(call, context)

    @contextmanager
    def _limit_watches(self, call: Call) -> Iterator[None]:
        """Count a health watch while it is open, or raise TooManyWatchesError."""
        if call.path != _WATCH:
            yield
            return
        num_watches = self._watches[call.connection]
        is_full = self._watches.total >= MAX_WATCHES or num_watches >= MAX_WATCHES_PER_CONNECTION
        if is_full and num_watches:  # each connection may have one, since connections are limited, too
            raise TooManyWatchesError("too many health watches; open one per connection")
        with self._watches.count(call.connection):
            yield

    async def _answer_one(
        self, behaviour: Behaviour, deserialize: Callable[[bytes], Any], call: Call, context: Any
    ) -> Any:
        """Receive the message of a call, and return the reply."""
        try:
            data = await self._receiver.message(call.connection, context)
            self._check_request(call, len(data))
            request = _deserialize(deserialize, data)
            if not call.is_health:  # its messages are small, and watches do not keep them
                self._memory.open(call)
                await self._memory.reserve(call, len(data))
            del data
            reply = await behaviour(request, context)
        finally:
            self._memory.close(call)
        call.reply_bytes = len(reply) if isinstance(reply, bytes) else 0
        call.check_reply(call.reply_bytes)
        is_first_health = call.is_health and not self._unread[call.connection]
        fits = partial(self._unread.fits, call.connection, call.reply_bytes)
        if not is_first_health and not await self._memory.budget.fits_soon(fits, call.reply_bytes):
            raise NoRoomError(f"no room for a reply of {call.reply_bytes} bytes; try later", retry_s=RETRY_S)
        self._unread.add(call.connection, call.reply_bytes)
        return reply

    async def _answer_all(
        self, behaviour: Behaviour, deserialize: Callable[[bytes], Any], call: Call, context: Any
    ) -> Any:
        """Answer a call whose client sends many messages."""

        async def requests() -> AsyncIterator[Any]:
            async for data in self._receiver.messages(call.connection, context):
                self._check_request(call, len(data))
                yield _deserialize(deserialize, data)

        return await behaviour(requests(), context)

    def _check_request(self, call: Call, num_bytes: int) -> None:
        """Raise MessageTooLargeError, or UnreadRepliesError if the connection reads no replies."""
        call.request_bytes = num_bytes
        limit, name = self._max_request_bytes, "--max-request-bytes"
        if call.path.startswith((_HEALTH, _REFLECTION)):
            limit, name = min(limit, MAX_HEALTH_BYTES), "health and reflection"
        if num_bytes > limit:
            raise MessageTooLargeError(
                f"the message is too large: `{num_bytes}` bytes (maximum `{limit}`, {name}); "
                "send fewer or shorter inputs per call"
            )
        if (unread := self._unread[call.connection]) > MAX_UNREAD_BYTES:
            raise UnreadRepliesError(
                f"{unread / 2**20:.0f} MiB of replies wait to be read by this connection; read them before "
                "sending more calls"
            )


async def _unknown_method(requests: Any, context: Any) -> None:
    """Stand in for the handler of an unknown method. Never called: the call is refused before."""


async def _write_all(behaviour: Behaviour, request: Any, context: Any) -> None:
    """Write the replies of a streaming handler."""
    async for reply in behaviour(request, context):
        await context.write(reply)


def _deserialize(deserialize: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return deserialize(data)
    except DecodeError:
        raise InvalidRequestError("the message cannot be parsed as a request of this method") from None
