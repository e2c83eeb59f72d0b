"""Metrics of RPCs, with the names that dashboards for gRPC servers know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram

from serving.core.metrics import SECONDS

LABELS = ("grpc_service", "grpc_method", "grpc_type")


@dataclass(frozen=True, slots=True)
class _Series:
    """Series of one method."""

    started: Counter
    handling: Histogram
    handled: Mapping[str, Counter]
    """Counters by name of the status."""


class RpcMetrics:
    """Counts and times the calls of some services. Calls of other services are not counted."""

    def __init__(self, registry: CollectorRegistry, services: Mapping[str, Iterable[str]]) -> None:
        """Create the series of all methods.

        Args:
            registry: registry of the server's metrics.
            services: full name of each service -> its methods.
        """
        self._started = Counter("grpc_server_started_total", "RPCs started.", LABELS, registry=registry)
        self._handled = Counter(
            "grpc_server_handled_total", "RPCs ended, by status.", (*LABELS, "grpc_code"), registry=registry
        )
        self._handling = Histogram(
            "grpc_server_handling_seconds",
            "From start to end of an RPC.",
            LABELS,
            buckets=SECONDS,
            registry=registry,
        )
        self._methods = {
            f"/{service}/{method}": self._series(service, method)
            for service, methods in services.items()
            for method in methods
        }

    def started(self, path: str) -> None:
        """Count a call of a method, `/service/name`, that starts."""
        if series := self._methods.get(path):
            series.started.inc()

    def handled(self, path: str, status: str, seconds: float) -> None:
        """Count a call that has ended."""
        if series := self._methods.get(path):
            series.handling.observe(seconds)
            series.handled[status].inc()

    def _series(self, service: str, method: str) -> _Series:
        labels = (service, method, "unary")
        return _Series(
            started=self._started.labels(*labels),
            handling=self._handling.labels(*labels),
            handled={code.name: self._handled.labels(*labels, _label(code)) for code in grpc.StatusCode},
        )


def _label(code: grpc.StatusCode) -> str:
    """Return the name of a code as dashboards know it: `InvalidArgument`, but `OK` in capitals."""
    return "OK" if code is grpc.StatusCode.OK else code.name.title().replace("_", "")
