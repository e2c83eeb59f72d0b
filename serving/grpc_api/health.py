"""Health service (grpc.health.v1) of the server as a whole and of each model.

Replaces the servicer of grpcio-health-checking, which cannot remove a service, writes to watchers while it holds the
lock for status changes, and never ends a watch, so that each open watch delays shutdown by the whole grace period.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeAlias

from grpc_health.v1 import health_pb2, health_pb2_grpc

from serving.core.errors import UnknownServiceError, shorten

Status: TypeAlias = health_pb2.HealthCheckResponse.ServingStatus
SERVING: Status = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Status = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN: Status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Servicer that answers with the last published statuses. Belongs to one event loop."""

    def __init__(self) -> None:
        self._statuses: dict[str, Status] = {}
        self._changed = asyncio.Event()
        """Event that is set and replaced at every change."""
        self._frozen = False
        self._ended = False

    @property
    def serving(self) -> dict[str, bool]:
        """Service -> whether its status is SERVING. Thread-safe."""
        return {service: status == SERVING for service, status in self._statuses.items()}

    def publish(self, statuses: Mapping[str, Status]) -> None:
        """Replace all statuses; other services become unknown. Has no effect after `drain`."""
        if not self._frozen:
            self._statuses = dict(statuses)
            self._notify()

    def drain(self) -> None:
        """Set every service to NOT_SERVING and ignore later changes."""
        self.publish(dict.fromkeys(self._statuses, NOT_SERVING))
        self._frozen = True

    def end_watches(self) -> None:
        """End all watches with status OK."""
        self._ended = True
        self._notify()

    async def Check(self, request: Any, context: Any) -> Any:
        """Return the status of a service; NOT_FOUND if it is unknown."""
        status = self._statuses.get(request.service)
        if status is None:
            raise UnknownServiceError(shorten(f"unknown service: `{request.service}`"))
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Yield the status of a service and every change of it; SERVICE_UNKNOWN while it is unknown."""
        sent = None
        while not self._ended:
            changed = self._changed
            status = self._statuses.get(request.service, SERVICE_UNKNOWN)
            if status != sent:
                yield health_pb2.HealthCheckResponse(status=status)
                sent = status
            await changed.wait()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
