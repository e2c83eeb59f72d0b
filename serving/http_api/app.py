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
from starlette.routing import compile_path
from starlette.types import ASGIApp

from serving.core.calls import REQUEST_ID, Call, connection_name
from serving.core.credentials import TLS, FileWatcher, TlsFiles, check_files
from serving.core.errors import MethodNotAllowedError, UnknownMethodError, shorten
from serving.core.guards import Guards, recorded
from serving.core.metrics import Metrics
from serving.core.request_memory import RequestMemory
from serving.core.service import InferenceService
from serving.http_api import open_inference, openai, rerank, rpc
from serving.http_api.connection import HttpFront
from serving.http_api.exchange import (
    DisconnectedError,
    HttpReply,
    Operation,
    Proceed,
    Receive,
    Request,
    Scope,
    own_error,
)
from serving.http_api.server_routes import description_route, health_routes, metrics_route, page_routes
from serving.http_api.steps import (
    SPACE,
    UNKNOWN,
    AnswerOperation,
    HttpMetrics,
    OriginChecker,
    compress_reply,
    read_deadline,
    send_status,
)
from serving.http_api.tei import TeiRoutes
from serving.open_inference.service import OpenInference
from serving.settings import Settings

OTHER = "ANY"
"""Stands for the methods that a path does not have; no HTTP method."""
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
PART_BYTES = 2**16
"""Bytes of a reply that are handed to the connection at a time."""
JSON_FACTOR = 4
"""Bytes of a reply in JSON per byte of its message, at most: a number of four bytes has up to 13 characters."""
EXPOSED_HEADERS = ("x-request-id", "retry-after", SPACE)
"""Headers of replies that pages of other origins may read."""


class Application:
    """ASGI application: finds the operation of a request by path and method, and sends the reply."""

    def __init__(
        self,
        operations: Iterable[Operation],
        service: InferenceService,
        answer: Proceed,
    ) -> None:
        """Set the routes.

        Args:
            operations: routes of the server.
            service: has the threads and the limits of requests.
            answer: passes a request through the steps that all have in common, and answers it.
        """
        self._service, self._answer = service, answer
        self._methods: dict[str, dict[str, Operation]] = {}
        """Operations of each path by method."""
        for operation in operations:
            methods = self._methods.setdefault(operation.path, {})
            methods[operation.method] = operation
            if operation.method == "GET":
                methods["HEAD"] = operation
        for path, methods in self._methods.items():
            methods[OTHER] = _other_method(path, methods)
        self._patterns = [(compile_path(path)[0], self._methods.pop(path)) for path in [*self._methods] if "{" in path]
        """Paths with parameters, which a look-up does not find."""
        self._unknown = {
            prefix: {OTHER: Operation(OTHER, UNKNOWN, _refuse_path, error_body)}
            for prefix, error_body in (("/v2/", open_inference.oip_error), ("", own_error))
        }
        """Operations of other paths by their beginning."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Return without a reply if the client has hung up."""
        methods, path_parameters = self._find(scope["path"])
        operation = methods.get(scope["method"]) or methods[OTHER]
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        headers = dict(pairs)
        call = Call(
            operation.name,
            headers=headers,
            authorizations=[value for name, value in pairs if name == "authorization"],
            connection=connection_name(*scope["client"]),
            is_health=operation.is_health,
            reply_factor=JSON_FACTOR,
        )
        max_values = 2 * self._service.limits.max_fields + operation.max_words
        request = Request(operation, call, scope, receive, path_parameters, self._service.codec_pool, max_values)
        request.reply_headers[REQUEST_ID] = call.request_id
        try:
            await _send(await self._answer(call, request), request, send)
        except (asyncio.CancelledError, DisconnectedError):
            return
        finally:
            if request.release:
                request.release()

    def _find(self, path: str) -> tuple[Mapping[str, Operation], Mapping[str, str]]:
        """Return the operations of a path by method, and its parameters."""
        if methods := self._methods.get(path):
            return methods, {}
        for pattern, methods in self._patterns:
            if found := pattern.match(path):
                return methods, found.groupdict()
        return next(methods for prefix, methods in self._unknown.items() if path.startswith(prefix)), {}


async def _send(reply: HttpReply, request: Request, send: Send) -> None:
    headers = {
        "content-type": reply.media_type,
        "content-length": str(len(reply.data)),
        "x-content-type-options": "nosniff",
        **request.reply_headers,
        **dict(reply.headers),
    }
    if not request.is_read:  # the rest of the body would be taken for the next request
        headers["connection"] = "close"
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": int(reply.status), "headers": pairs})
    for start in range(0, len(reply.data) or 1, PART_BYTES):
        end = start + PART_BYTES
        part = {"type": "http.response.body", "body": reply.data[start:end], "more_body": end < len(reply.data)}
        await send(part)  # waits until the client has read most of the parts before


async def _refuse_path(request: Request) -> HttpReply:
    raise UnknownMethodError(shorten(f"no such route: `{request.scope['method']} {request.scope['path']}`"))


def _other_method(path: str, methods: Mapping[str, Operation]) -> Operation:
    allowed, first = ", ".join(sorted(methods)), next(iter(methods.values()))

    async def answer(request: Request) -> HttpReply:
        if request.scope["method"] == "OPTIONS":
            return HttpReply(b"", HTTPStatus.NO_CONTENT, headers=[("allow", allowed)])
        method = request.scope["method"]
        raise MethodNotAllowedError(f"`{path}` has no method `{method}`; use {allowed}", allowed)

    return Operation(OTHER, path, answer, first.error_body)


def all_operations(
    service: InferenceService,
    protocol: OpenInference,
    registry: CollectorRegistry | None,
    *,
    max_request_bytes: int,
    health_problem: Callable[[], str],
    run_canaries: Callable[[], Awaitable[None]],
) -> list[Operation]:
    """Return all routes but their description and the page.

    Args:
        service: answers requests.
        protocol: answers those of the Open Inference Protocol.
        registry: metrics for `/metrics`; None for no such route.
        max_request_bytes: maximum size of a request, for `/info`.
        health_problem: returns why the server cannot answer; empty if it can.
        run_canaries: runs the canaries of all models.
    """
    return [
        *health_routes(health_problem, run_canaries),
        *([metrics_route(registry)] if registry else []),
        *openai.operations(service),
        *rpc.operations(service),
        *rerank.operations(service),
        *open_inference.operations(protocol),
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
    registry: CollectorRegistry,
    grpc_port: Callable[[], int],
    health_problem: Callable[[], str],
    run_canaries: Callable[[], Awaitable[None]],
    observers: Sequence[Callable[[Call], None]],
) -> HttpFront:
    """Return the HTTP front of a server.

    Args:
        settings: settings of the server.
        service: answers requests.
        protocol: answers those of the Open Inference Protocol.
        metrics: metrics of the server.
        memory: memory of received requests.
        guards: tokens and limits, which all fronts share.
        tls: the server's certificate; None for plain text.
        registry: metrics for `/metrics`.
        grpc_port: returns the gRPC port, for calls that the page of the models shows.
        health_problem: returns why the server cannot answer; empty if it can.
        run_canaries: runs the canaries of all models.
        observers: called with each ended call.

    Raises:
        ValueError: when a TLS file cannot be used.
        OSError: when a TLS file cannot be read.
    """

    http_metrics = HttpMetrics(metrics.registry)
    has_any_name = settings.tokens_file or settings.tls_cert
    origins = OriginChecker(None if has_any_name else (settings.host, *settings.http_hosts), settings.http_origins)

    async def record(call: Call, request: Request, proceed: Proceed) -> HttpReply:
        """Count and log the request."""
        with recorded(call, http_metrics, observers):
            return await proceed(call, request)

    async def guard(call: Call, request: Request, proceed: Proceed) -> HttpReply:
        """Check name and origin, and the token unless the reply is for everyone; read the headers, and limit the
        requests of a client."""
        try:
            origins.check(call, request.scope["method"])
            if not request.operation.is_public:
                guards.authenticate(call)
            call.read_headers()
            with guards.limit(call):
                return await proceed(call, request)
        except Exception as error:
            await guards.pace(call, error)
            raise

    steps: list[Callable[..., Awaitable[HttpReply]]] = [
        record,
        send_status,
        guard,
        read_deadline,
        *([compress_reply] if settings.http_gzip else []),
    ]
    answer: Proceed = AnswerOperation(service, memory, settings.max_request_bytes, settings.receive_s)
    for step in reversed(steps):
        answer = partial(step, proceed=answer)
    operations = all_operations(
        service,
        protocol,
        registry if settings.metrics_host is None else None,
        max_request_bytes=settings.max_request_bytes,
        health_problem=health_problem,
        run_canaries=run_canaries,
    )
    page = page_routes(grpc_port, tls=tls is not None)
    app: ASGIApp = Application([*operations, description_route(operations), *page], service, answer)  # type: ignore[assignment]
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
