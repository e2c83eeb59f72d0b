"""Health service of a fake server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from bertline._protos import HEALTH, NOT_SERVING, SERVICE_UNKNOWN, SERVING, HealthReply, HealthRequest
from bertline.testing._faults import Refusal


class FakeHealth:
    """Service grpc.health.v1.Health.

    Args:
        services: returns the names of the services that exist now.
        admit: aborts a call that is not allowed.
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
        """True if all services report SERVING."""
        return self._serving

    @serving.setter
    def serving(self, value: bool) -> None:
        self._serving = value
        self._wake()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler that routes calls here."""
        codec = {"request_deserializer": HealthRequest.FromString, "response_serializer": HealthReply.SerializeToString}
        handlers = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check, **codec),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch, **codec),
        }
        return grpc.method_handlers_generic_handler(HEALTH.strip("/"), handlers)

    def _check(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._admit(context)
        if (status := self._status(request.service)) == SERVICE_UNKNOWN:
            Refusal("NOT_FOUND", f"no such service: `{request.service}`", reason="SERVICE_NOT_FOUND").abort(context)
        return HealthReply(status=status)

    def _watch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        self._admit(context)
        context.add_callback(self._wake)
        sent = None
        while context.is_active():
            if (status := self._status(request.service)) != sent:
                yield HealthReply(status=status)
                sent = status
            with self._changed:
                while context.is_active() and self._status(request.service) == sent:
                    self._changed.wait()

    def _status(self, service: str) -> int:
        if service not in self._services():
            return SERVICE_UNKNOWN
        return SERVING if self._serving else NOT_SERVING

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
