"""Interceptor of all gRPC calls: the steps that every call passes, in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health

from serving.core.calls import Call
from serving.core.errors import drop_tracebacks
from serving.core.steps import Answer, CountCalls, Guards, NotifyObservers, ReadHeaders, Step
from serving.grpc_api.current import current_call, set_current_call
from serving.grpc_api.messages import Behaviour, Messages
from serving.grpc_api.rpc_metrics import RpcMetrics
from serving.grpc_api.steps import CheckMethod, Identify, LimitWatches, SendStatus

_HEALTH = f"/{health.SERVICE_NAME}/"


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
        answer: Answer = partial(answer_messages, behaviour, handler.request_deserializer or _same)
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
    """Write the replies of a streaming handler, which either yields them or writes them itself."""
    replies = behaviour(request, context)
    if not hasattr(replies, "__aiter__"):
        await replies
        return
    async for reply in replies:
        await context.write(reply)


def _same(data: bytes) -> bytes:
    return data
