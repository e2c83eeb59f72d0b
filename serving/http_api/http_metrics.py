"""Metrics of HTTP requests, beside those of RPCs."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from serving.core.metrics import SECONDS

LABELS = ("http_method", "http_route")


class HttpMetrics:
    """Counts and times the requests of the known routes. Requests of other paths are counted as route `unknown`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._started = Counter("http_server_started_total", "HTTP requests started.", LABELS, registry=registry)
        self._handled = Counter(
            "http_server_handled_total", "HTTP requests ended, by status.", (*LABELS, "http_status"), registry=registry
        )
        self._seconds = Histogram(
            "http_server_handling_seconds",
            "From start to end of an HTTP request.",
            LABELS,
            buckets=SECONDS,
            registry=registry,
        )

    def started(self, path: str) -> None:
        """Count a request of a route, `POST /v1/embeddings`, that starts."""
        self._started.labels(*path.split(" ", 1)).inc()

    def handled(self, path: str, status: str, seconds: float) -> None:
        """Count a request that has ended."""
        labels = path.split(" ", 1)
        self._handled.labels(*labels, "200" if status == "OK" else status).inc()
        self._seconds.labels(*labels).observe(seconds)
