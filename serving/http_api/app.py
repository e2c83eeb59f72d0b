"""HTTP front of a server: its routes, the steps that every request passes, its certificates."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from serving.core.calls import Call
from serving.core.credentials import TLS, FileWatcher, TlsFiles, check_files
from serving.core.errors import MethodNotAllowedError, UnknownMethodError, shorten
from serving.core.metrics import Metrics
from serving.core.request_memory import RequestMemory
from serving.core.service import InferenceService
from serving.core.steps import Answer, CountCalls, Guards, NotifyObservers, ReadHeaders, Step
from serving.endpoints.rerank import Rerank
from serving.http_api import openai, playground, rerank, rpc
from serving.http_api.connection import HttpFront
from serving.http_api.exchange import (
    Body,
    DisconnectedError,
    Exchange,
    HttpReply,
    Operation,
    Receive,
    Scope,
    own_error,
)
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


def create_router(operations: Iterable[Operation], answer: Callable[[Call, Exchange], Awaitable[HttpReply]]) -> Router:
    """Return the ASGI application of some operations.

    Args:
        operations: routes of the server.
        answer: passes a request through the steps that all have in common, and answers it.
    """
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
        if operation.method == "GET":
            by_path[operation.path]["HEAD"] = operation
    routes = [
        Route(path, _Endpoint(methods, _other_method(path, methods), answer)) for path, methods in by_path.items()
    ]
    no_route: Any = _Endpoint({}, _no_route(), answer)
    return Router(routes, redirect_slashes=False, default=no_route)


class _Endpoint:
    """ASGI endpoint of a path: chooses the operation by method."""

    def __init__(
        self,
        operations: Mapping[str, Operation],
        other: Operation,
        answer: Callable[[Call, Exchange], Awaitable[HttpReply]],
    ) -> None:
        self._operations = operations
        self._other = other
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Return without a reply if the client has hung up."""
        operation = self._operations.get(scope["method"], self._other)
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        call = Call(
            operation.name,
            headers=dict(pairs),
            authorizations=[value for name, value in pairs if name == "authorization"],
            is_health=operation.is_health,
            reply_factor=JSON_FACTOR,
        )
        exchange = Exchange(operation, scope, receive)
        try:
            await _send(await self._answer(call, exchange), exchange, send)
        except (asyncio.CancelledError, DisconnectedError):
            return
        finally:
            if exchange.release:
                exchange.release()


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


def _no_route() -> Operation:
    async def answer(body: Body, call: Call, exchange: Exchange) -> HttpReply:
        raise UnknownMethodError(shorten(f"no such route: `{exchange.scope['method']} {exchange.scope['path']}`"))

    return Operation("ANY", UNKNOWN, answer, own_error)


def _other_method(path: str, methods: Mapping[str, Operation]) -> Operation:
    allowed = ", ".join(sorted(methods))

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

    async def authenticate(call: Call, context: Exchange, proceed: Answer) -> HttpReply:
        """Check the token, unless the reply is for everyone."""
        if context.operation.is_public:
            return await proceed(call, context)  # type: ignore[no-any-return]
        return await guards.authenticate(call, context, proceed)  # type: ignore[no-any-return]

    http_metrics = HttpMetrics(metrics.registry)
    has_any_name = settings.tokens_file or settings.tls_cert
    steps: list[Step] = [
        Identify(),
        NotifyObservers(observers),
        CountCalls(http_metrics),
        SendStatus(),
        CheckOrigin(None if has_any_name else (settings.host, *settings.http_hosts), settings.http_origins),
        guards.pace,
        authenticate,
        ReadHeaders(),
        guards.limit,
        ReadDeadline(),
        *([CompressReply(service.codec_pool)] if settings.http_gzip else []),
    ]
    answer: Any = AnswerOperation(service, memory, settings.max_request_bytes, settings.receive_s)
    for step in reversed(steps):
        answer = partial(step, proceed=answer)
    registry = metrics.registry if settings.metrics_host is None else None
    operations = all_operations(
        service, protocol, registry, max_request_bytes=settings.max_request_bytes, health_problem=health_problem
    )
    page = playground.operations(grpc_port, tls=tls is not None)
    app: ASGIApp = create_router([*operations, description_route(operations), *page], answer)
    if settings.http_origins:
        app = CORSMiddleware(app, settings.http_origins, ["GET", "POST"], ["*"], expose_headers=EXPOSED_HEADERS)
    return HttpFront(
        app,
        memory.budget,
        max_connections=settings.max_connections,
        unread_s=settings.keepalive_timeout_s,
        refused=http_metrics.refused,
        tls=tls_context(tls) if tls else None,
    )


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a context that uses renewed files for new connections.

    Authorities cannot be taken out of a context, so each renewal makes a new one, and the first context hands every
    new connection to it.

    Raises:
        ValueError: when a file cannot be used. The message names it.
        OSError: when a file cannot be read.
    """

    def read() -> ssl.SSLContext:
        check_files(files)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.client_ca)
        context.load_cert_chain(files.cert, files.key)
        if files.client_ca:
            context.verify_mode = ssl.CERT_REQUIRED
            context.num_tickets = 0  # a resumed connection would not be checked against renewed authorities
            context.options |= ssl.OP_NO_TICKET
        return context

    def hand_over(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
        """Set the context of a new connection; OpenSSL calls this in every handshake, also without a server name."""
        connection.context = watcher.current()

    watcher = FileWatcher(TLS, files.paths, read)
    first = watcher.current()
    first.sni_callback = hand_over
    return first
