"""Composition of the HTTP front: its routes, limits and TLS."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from serving.core.calls import Call
from serving.core.metrics import Metrics
from serving.core.request_memory import RequestMemory
from serving.core.service import InferenceService
from serving.core.steps import Guards
from serving.core.tls_files import TlsFiles
from serving.endpoints.rerank import Rerank
from serving.http_api import health, metrics_page, openai, openapi, playground, rerank, rpc
from serving.http_api.app import HttpApp
from serving.http_api.body import BodyReader
from serving.http_api.connection import Connections
from serving.http_api.exchange import Operation
from serving.http_api.front import HttpFront
from serving.http_api.http_metrics import HttpMetrics
from serving.http_api.open_inference import OpenInferenceRoutes
from serving.http_api.steps import CheckOrigin, CompressReply
from serving.http_api.tei import TeiRoutes
from serving.http_api.tls import TlsContext
from serving.open_inference.service import OpenInference
from serving.settings import Settings

EXPOSED_HEADERS = ("x-request-id", "retry-after")
"""Headers of replies that pages of other origins may read."""


def all_operations(
    service: InferenceService,
    protocol: OpenInference,
    registry: CollectorRegistry | None,
    *,
    max_request_bytes: int,
    health_problem: Callable[[], str],
) -> list[Operation]:
    """Return all routes but their description and the page.

    Args:
        service: answers requests.
        protocol: answers those of the Open Inference Protocol.
        registry: metrics for `/metrics`; None for no such route.
        max_request_bytes: maximum size of a request, for `/info`.
        health_problem: returns why the server cannot answer; empty if it can.
    """
    return [
        *health.operations(health_problem),
        *(metrics_page.operations(registry, service.codec_pool) if registry else []),
        *openai.operations(service),
        *rpc.operations(service),
        *rerank.operations(service, rpc.json_method(service, Rerank.name)),
        *OpenInferenceRoutes(service, protocol).operations(),
        *TeiRoutes(service, max_request_bytes).operations(),
    ]


def create_front(
    settings: Settings,
    service: InferenceService,
    protocol: OpenInference,
    metrics: Metrics,
    memory: RequestMemory,
    guards: Guards,
    *,
    tls: TlsFiles | None,
    grpc_port: Callable[[], int],
    health_problem: Callable[[], str],
    observers: Sequence[Callable[[Call], None]],
) -> HttpFront:
    """Return the HTTP front of a server.

    Args:
        settings: settings of the server.
        service: answers requests.
        protocol: answers those of the Open Inference Protocol.
        metrics: metrics of the server.
        memory: memory of received requests.
        guards: steps that all fronts share.
        tls: the server's certificate; None for plain text.
        grpc_port: returns the gRPC port, for calls that the page of the models shows.
        health_problem: returns why the server cannot answer; empty if it can.
        observers: called with each ended call.

    Raises:
        ValueError: when a TLS file cannot be used.
        OSError: when a TLS file cannot be read.
    """
    routes = HttpApp(
        guards,
        HttpMetrics(metrics.registry),
        BodyReader(memory, service.codec_pool, service.limits, settings.max_request_bytes, settings.receive_s),
        service.begin_call,
        observers,
        CheckOrigin(
            None if settings.tokens_file or settings.tls_cert else (settings.host, *settings.http_hosts),
            settings.http_origins,
        ),
        [CompressReply(service.codec_pool)] if settings.http_gzip else [],
    )
    page = metrics.registry if settings.metrics_host is None else None
    operations = all_operations(
        service, protocol, page, max_request_bytes=settings.max_request_bytes, health_problem=health_problem
    )
    routes.add([*operations, *openapi.operations(operations), *playground.operations(grpc_port, tls=tls is not None)])
    app: ASGIApp = routes  # type: ignore[assignment]
    if settings.http_origins:
        app = CORSMiddleware(app, settings.http_origins, ["GET", "POST"], ["*"], expose_headers=EXPOSED_HEADERS)
    connections = Connections(
        app,
        memory.budget,
        max_connections=settings.max_connections,
        unread_s=settings.keepalive_timeout_s,
        scheme="https" if tls else "http",
    )
    return HttpFront(connections, TlsContext(tls) if tls else None)
