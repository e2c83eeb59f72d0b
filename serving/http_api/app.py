"""ASGI application: the routes of the server, and around each the steps that every request passes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from serving.core.calls import Call
from serving.core.credentials import TlsFiles
from serving.core.errors import MethodNotAllowedError, UnknownMethodError, shorten
from serving.core.metrics import Metrics
from serving.core.request_memory import RequestMemory
from serving.core.service import InferenceService
from serving.core.steps import CountCalls, Guards, NotifyObservers, ReadHeaders, Step
from serving.endpoints.rerank import Rerank
from serving.http_api import openai, playground, rerank, rpc
from serving.http_api.body import Body, BodyReader, DisconnectedError
from serving.http_api.connection import Connections
from serving.http_api.exchange import Exchange, HttpReply, Operation, Receive, Scope, own_error
from serving.http_api.front import HttpFront, TlsContext
from serving.http_api.open_inference import OpenInferenceRoutes
from serving.http_api.server_routes import description_route, health_route, metrics_route
from serving.http_api.steps import (
    UNKNOWN,
    AnswerOperation,
    CheckOrigin,
    CompressReply,
    HttpMetrics,
    Identify,
    ReadDeadline,
    SendStatus,
)
from serving.http_api.tei import TeiRoutes
from serving.open_inference.service import OpenInference
from serving.settings import Settings

Send = Callable[[Mapping[str, Any]], Awaitable[None]]
PART_BYTES = 2**16
"""Bytes of a reply that are handed to the connection at a time."""
JSON_FACTOR = 4
"""Bytes of a reply in JSON per byte of its message, at most: a number of four bytes has up to 13 characters."""
EXPOSED_HEADERS = ("x-request-id", "retry-after")
"""Headers of replies that pages of other origins may read."""


class HttpApp:
    """Answers HTTP requests: an ASGI application."""

    def __init__(
        self,
        guards: Guards,
        http_metrics: HttpMetrics,
        reader: BodyReader,
        begin_call: Callable[..., None],
        observers: Sequence[Callable[[Call], None]],
        check_origin: Step,
        more_steps: Sequence[Step] = (),
    ) -> None:
        """Set up the steps.

        Args:
            guards: steps that all fronts share.
            http_metrics: counts and durations of requests.
            reader: reads the bodies.
            begin_call: `InferenceService.begin_call`, which refuses calls while the server is unavailable.
            observers: called with each ended call.
            check_origin: refuses what pages of other sites send.
            more_steps: steps that follow all others, before a request is answered.
        """
        self._begin_call = begin_call
        self._reader = reader
        self._authenticate = guards.authenticate
        self._before: list[Step] = [Identify(), NotifyObservers(observers), CountCalls(http_metrics)]
        self._after: list[Step] = [
            check_origin,
            guards.pace,
            guards.authenticate,
            ReadHeaders(),
            guards.limit,
            ReadDeadline(),
            *more_steps,
        ]
        self._router = Router(redirect_slashes=False, default=self._endpoint(_no_route(UNKNOWN)))  # type: ignore[arg-type]

    def add(self, operations: Iterable[Operation]) -> None:
        """Add routes."""
        by_path: dict[str, dict[str, Operation]] = {}
        for operation in operations:
            by_path.setdefault(operation.path, {})[operation.method] = operation
        for path, methods in by_path.items():
            endpoints = {method: self._endpoint(operation) for method, operation in methods.items()}
            if "GET" in endpoints:
                endpoints["HEAD"] = endpoints["GET"]
            other = self._endpoint(_other_method(path, methods))
            self._router.routes.append(Route(path, _ByMethod(endpoints, other)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._router(scope, receive, send)  # type: ignore[arg-type]

    def _endpoint(self, operation: Operation) -> Endpoint:
        answer: Any = AnswerOperation(operation, self._reader, self._begin_call)
        after = [step for step in self._after if not (operation.is_public and step is self._authenticate)]
        for step in reversed([*self._before, SendStatus(operation), *after]):
            answer = partial(step, proceed=answer)
        return Endpoint(operation, answer)


class Endpoint:
    """ASGI endpoint of an operation."""

    def __init__(self, operation: Operation, answer: Callable[[Call, Exchange], Awaitable[HttpReply]]) -> None:
        self._operation = operation
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Return without a reply if the client has hung up."""
        headers: dict[str, str] = {}
        authorizations = []
        for raw_name, raw_value in scope["headers"]:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            headers[name] = value
            if name == "authorization":
                authorizations.append(value)
        call = Call(
            self._operation.name,
            headers=headers,
            authorizations=authorizations,
            is_health=self._operation.is_health,
            reply_factor=JSON_FACTOR,
        )
        exchange = Exchange(scope, receive)
        try:
            await _send(await self._answer(call, exchange), exchange, send)
        except (asyncio.CancelledError, DisconnectedError):
            return
        finally:
            exchange.release()


class _ByMethod:
    """Endpoint of a path: chooses by method."""

    def __init__(self, endpoints: Mapping[str, Endpoint], other: Endpoint) -> None:
        self._endpoints = endpoints
        self._other = other

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._endpoints.get(scope["method"], self._other)(scope, receive, send)


async def _send(reply: HttpReply, exchange: Exchange, send: Send) -> None:
    headers = {
        "content-type": reply.media_type,
        "content-length": str(len(reply.data)),
        "x-content-type-options": "nosniff",
        **exchange.reply_headers,
        **dict(reply.headers),
    }
    if not exchange.is_read:  # the rest of the body would be taken for the next request
        headers["connection"] = "close"
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": int(reply.status), "headers": pairs})
    for start in range(0, len(reply.data) or 1, PART_BYTES):
        end = start + PART_BYTES
        part = {"type": "http.response.body", "body": reply.data[start:end], "more_body": end < len(reply.data)}
        await send(part)  # waits until the client has read most of the parts before


def _no_route(path: str) -> Operation:
    async def answer(body: Body, call: Call, exchange: Exchange) -> HttpReply:
        raise UnknownMethodError(shorten(f"no such route: `{exchange.scope['method']} {exchange.scope['path']}`"))

    return Operation("ANY", path, answer, own_error)


def _other_method(path: str, methods: Mapping[str, Operation]) -> Operation:
    allowed = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))

    async def answer(body: Body, call: Call, exchange: Exchange) -> HttpReply:
        if exchange.scope["method"] == "OPTIONS":
            return HttpReply(b"", HTTPStatus.NO_CONTENT, headers=[("allow", allowed)])
        raise MethodNotAllowedError(f"`{path}` has no method `{exchange.scope['method']}`; use {allowed}", allowed)

    return Operation("ANY", path, answer, next(iter(methods.values())).error_body)


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
        health_route(health_problem),
        *([metrics_route(registry, service.codec_pool)] if registry else []),
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
    http_metrics = HttpMetrics(metrics.registry)
    routes = HttpApp(
        guards,
        http_metrics,
        BodyReader(memory, service.codec_pool, service.limits, settings.max_request_bytes, settings.receive_s),
        service.begin_call,
        observers,
        CheckOrigin(
            None if settings.tokens_file or settings.tls_cert else (settings.host, *settings.http_hosts),
            settings.http_origins,
        ),
        [CompressReply(service.codec_pool)] if settings.http_gzip else [],
    )
    registry = metrics.registry if settings.metrics_host is None else None
    operations = all_operations(
        service, protocol, registry, max_request_bytes=settings.max_request_bytes, health_problem=health_problem
    )
    page = playground.operations(grpc_port, tls=tls is not None)
    routes.add([*operations, description_route(operations), *page])
    app: ASGIApp = routes  # type: ignore[assignment]
    if settings.http_origins:
        app = CORSMiddleware(app, settings.http_origins, ["GET", "POST"], ["*"], expose_headers=EXPOSED_HEADERS)
    connections = Connections(
        app,
        memory.budget,
        max_connections=settings.max_connections,
        unread_s=settings.keepalive_timeout_s,
        refused=http_metrics.refused,
        scheme="https" if tls else "http",
    )
    return HttpFront(connections, TlsContext(tls) if tls else None)
