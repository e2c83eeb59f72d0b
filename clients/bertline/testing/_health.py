"""The health service of a fake server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from bertline._protos import HEALTH, NOT_SERVING, SERVICE_UNKNOWN, SERVING, HealthReply, HealthRequest


class FakeHealth:
    """Tells whether the services serve, of which there may be others at any time.

    Args:
        services: the names of all, when it is asked.
        admit: aborts the calls that may not ask.
    """

    def __init__(
        self,
        services: Callable[[], Sequence[str]],
        admit: Callable[[grpc.ServicerContext], None] = lambda context: None,
    ) -> None:
        self._services = services
        self._admit = admit
        self._serving = True
        self._changed = threading.Condition()

    @property
    def serving(self) -> bool:
        """What is told of all services."""
        return self._serving

    @serving.setter
    def serving(self, value: bool) -> None:
        self._serving = value
        self._wake()

    def handler(self) -> grpc.GenericRpcHandler:
        """What a server needs to route calls here."""
        codec = {"request_deserializer": HealthRequest.FromString, "response_serializer": HealthReply.SerializeToString}
        handlers = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check, **codec),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch, **codec),
        }
        return grpc.method_handlers_generic_handler(HEALTH.strip("/"), handlers)

    def _check(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._admit(context)
        if (status := self._status(request.service)) == SERVICE_UNKNOWN:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no such service: `{request.service}`")
        return HealthReply(status=status)

    def _watch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        self._admit(context)
        context.add_callback(self._wake)
        told = None
        while context.is_active():
            if (status := self._status(request.service)) != told:
                yield HealthReply(status=status)
                told = status
            with self._changed:
                while context.is_active() and self._status(request.service) == told:
                    self._changed.wait()

    def _status(self, service: str) -> int:
        if service not in self._services():
            return SERVICE_UNKNOWN
        return SERVING if self._serving else NOT_SERVING

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
