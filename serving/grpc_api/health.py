"""grpc.health.v1: the server as a whole, and each model.

grpcio-health-checking's own servicer cannot forget a service, writes to watchers under the lock that a change of status
needs, and never ends a watch, so that each open one would use up the whole grace of a drain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeAlias

from grpc_health.v1 import health_pb2, health_pb2_grpc

from serving.core.errors import UnknownServiceError, shorten

Status: TypeAlias = health_pb2.HealthCheckResponse.ServingStatus
SERVING: Status = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Status = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN: Status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Tells what was last published. Lives in one event loop."""

    def __init__(self) -> None:
        self._statuses: dict[str, Status] = {}
        self._changed = asyncio.Event()
        """Set, and replaced, at every change."""
        self._frozen = False
        self._ended = False

    @property
    def serving(self) -> dict[str, bool]:
        """Which services are SERVING. May be read anywhere."""
        return {service: status == SERVING for service, status in self._statuses.items()}

    def publish(self, statuses: Mapping[str, Status]) -> None:
        """Replace the statuses of all services; those that are left out become unknown. Nothing once it drains."""
        if not self._frozen:
            self._statuses = dict(statuses)
            self._notify()

    def drain(self) -> None:
        """NOT_SERVING for every service, for good."""
        self.publish(dict.fromkeys(self._statuses, NOT_SERVING))
        self._frozen = True

    def end_watches(self) -> None:
        """End all watches, with OK."""
        self._ended = True
        self._notify()

    async def Check(self, request: Any, context: Any) -> Any:
        """The status of one service; NOT_FOUND where there is none of that name."""
        status = self._statuses.get(request.service)
        if status is None:
            raise UnknownServiceError(shorten(f"no such service: `{request.service}`"))
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: Any, context: Any) -> None:
        """Tell of every change; SERVICE_UNKNOWN while there is no service of that name."""
        told = None
        while not self._ended:
            changed = self._changed
            status = self._statuses.get(request.service, SERVICE_UNKNOWN)
            if status != told:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                told = status
            await changed.wait()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
