"""Server: builds the parts, and starts, monitors and stops them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry

from serving.core.cache import ReplyCache
from serving.core.calls import Call
from serving.core.canary import Canaries
from serving.core.credentials import BearerTokens, TlsFiles
from serving.core.errors import ReceivingError
from serving.core.guards import Guards
from serving.core.limits import RequestLimits
from serving.core.metrics import Metrics
from serving.core.models import Model, Models, load_model
from serving.core.repository import Repository
from serving.core.request_memory import Budget, RequestMemory
from serving.core.scheduler import Scheduler
from serving.core.service import InferenceService
from serving.endpoints.methods import ENCODER, METHODS, SERVICE, encoder_methods
from serving.grpc_api.connections import UnreadReplies
from serving.grpc_api.health import NOT_SERVING, SERVING, HealthServicer
from serving.grpc_api.interceptor import Interceptor, RpcMetrics, route
from serving.grpc_api.listening import (
    Certificates,
    channel_options,
    check_free,
    listen,
    max_message_bytes,
    page_socket,
    url_host,
    warn_of_plain_text,
)
from serving.grpc_api.receiving import Receiver
from serving.grpc_api.status import SERVER_FAULTS, trace_attributes
from serving.open_inference import service as open_inference
from serving.open_inference.service import OpenInference
from serving.process import streams
from serving.process.call_log import CallLog
from serving.process.logs import GrpcLogFilter
from serving.process.members import PROCESS, Member, MemberMetrics
from serving.process.memory_trim import trim_memory
from serving.process.metrics_server import MetricsServer
from serving.process.ready import Ready
from serving.process.traces import Traces
from serving.settings import Settings, missing_package

if TYPE_CHECKING:
    from serving.http_api.connection import HttpFront

HEALTH_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
MONITOR_S = 1.0
"""Seconds between checks of the workers."""
QUIET_S = 0.1
"""Seconds without a new call after which a draining server stops gRPC. Until then it refuses calls with UNAVAILABLE:
when gRPC stops, it cancels those that it has received and Python has not accepted (grpc/grpc issue 41785), and those
that arrive until their client learns of it. They are not computed, and our client sends them again."""
MAX_SETTLE_S = 1.0
"""Maximum seconds that a draining server accepts calls, even if new ones keep arriving."""
MAX_LINGER_S = 0.5
"""Maximum seconds to wait for gRPC after the grace period. gRPC itself waits for clients that have stopped reading
until the system closes their connections, which takes minutes."""

logger = logging.getLogger(__name__)
logging.getLogger("grpc._cython.cygrpc").addFilter(GrpcLogFilter())


def model_loader(settings: Settings, before: Mapping[Path, Model]) -> Callable[..., Model]:
    """Return the function that loads a version, given its path and the model that is `loaded` from there.

    Args:
        settings: settings of the server.
        before: models that were loaded before the process began, by path.
    """

    def load(path: Path, loaded: Model | None = None) -> Model:
        return load_model(
            path,
            max_batch_tokens=settings.max_batch_tokens,
            num_threads=settings.num_threads,
            workers=settings.workers,
            max_run_s=settings.max_run_s,
            engine_fallback=settings.engine_fallback,
            spaces=settings.space,
            loaded=loaded or before.get(path),
        )

    return load


class Server:
    """Server of a directory of models. Call `start`, `load` and `stop` in one event loop."""

    def __init__(self, settings: Settings, member: Member | None = None) -> None:
        """Build the parts.

        Args:
            settings: settings of the server.
            member: what it shares with other processes that serve the same ports; None if there are none.

        Raises:
            ValueError: when the tokens file cannot be used, or --trace-endpoint is set without OpenTelemetry.
            OSError: when the tokens file cannot be read.
        """
        self.settings, self._member = settings, member
        self.metrics = Metrics()
        self._registry = self.metrics.registry
        """Metrics of this process, or of all."""
        if member:
            self._registry = CollectorRegistry()
            self._registry.register(MemberMetrics(member, self.metrics.registry))
        self._budget = Budget(settings.buffer_bytes // 2)
        """Memory of received requests and unread replies, of all fronts; as much is for messages being received."""
        self._unread = UnreadReplies(self._budget, settings.keepalive_timeout_s)
        self._memory = RequestMemory(self._budget, self._make_room)
        self.port = 0
        """gRPC port; 0 before `start`."""
        self.metrics_port = 0
        """Port of /metrics and /healthz; 0 before `start`."""
        self._metrics_host = settings.metrics_host or settings.host
        self._health = HealthServicer()
        tokens = BearerTokens(settings.tokens_file) if settings.tokens_file else None
        guards = Guards(
            self.metrics,
            tokens,
            open_health=settings.open_health,
            max_per_client=settings.max_concurrent_per_client,
        )
        self._call_log = CallLog(settings.log_calls)
        self._traces = Traces(settings.trace_endpoint, settings.trace_sample) if settings.trace_endpoint else None
        receiver = Receiver(
            settings.buffer_bytes // 2,
            max_message_bytes(settings),
            settings.receive_s,
            lambda error: self.metrics.refused(ReceivingError.refusal),
        )
        self._interceptor = Interceptor(
            guards,
            RpcMetrics(self.metrics.registry, {SERVICE: METHODS, open_inference.SERVICE: open_inference.METHODS}),
            receiver,
            self._memory,
            self._unread,
            self._observers(trace_attributes, SERVER_FAULTS),
            max_request_bytes=settings.max_request_bytes,
            metadata=[(PROCESS, str(member))] if member else [],
        )
        self._grpc = grpc.aio.server(
            options=list(channel_options(settings, is_shared=member is not None)), interceptors=[self._interceptor]
        )
        self._scheduler = Scheduler(
            workers=settings.workers,
            observer=self.metrics,
            max_queue_s=settings.max_queue_s,
            max_run_s=settings.max_run_s,
        )
        self._canaries = Canaries(self._scheduler, settings.canary_s, lambda: self._publish(self._service.models))
        cache: ReplyCache | None = ReplyCache(settings.cache_bytes) if settings.cache_bytes else None
        limits = RequestLimits(settings.max_texts, settings.max_chars)
        self._service = InferenceService(self._scheduler, self.metrics, limits, cache)
        self._protocol = OpenInference(self._service, self._is_healthy)
        self._repository = Repository(
            settings.models_dir,
            model_loader(settings, member.loaded if member else {}),
            self.metrics,
            self._publish,
            max_versions=settings.max_versions,
            defaults=settings.default_model,
        )
        self.metrics.collect_server(
            states=self._repository.states,
            scan_age_s=lambda: self._repository.scan_age_s,
            serving=lambda: self._health.serving,
            queued_sequences=self._scheduler.queued_sequences,
            queued_tokens=self._scheduler.queued_tokens,
            num_dropped_lines=streams.num_dropped,
            canary_problems=self._canaries.problems,
        )
        if cache is not None:
            self.metrics.collect_cache(lambda: cache.num_bytes, lambda: len(cache))
        self._tasks: list[asyncio.Task[None]] = []
        self._worker_problem = ""
        """Problem of the workers; empty if there is none."""
        self._metrics_servers: list[MetricsServer] = []
        self._http = self._http_front(guards) if settings.http_port is not None else None

    def _observers(
        self, attributes: Callable[[Call], Mapping[str, str | int]], faults: Collection[str]
    ) -> list[Callable[[Call], None]]:
        """Return what is called with each ended call of a front: the log, and the traces if they are on.

        Args:
            attributes, faults: as for `Traces.observer`.
        """
        traces = [self._traces.observer(attributes, faults)] if self._traces else []
        return [self._call_log, *traces]

    def _http_front(self, guards: Guards) -> HttpFront:
        """Return the HTTP front. Its libraries are only loaded here.

        Raises:
            ValueError: when they are not installed, or a TLS file cannot be used.
            OSError: when a TLS file cannot be read.
        """
        try:
            from serving.http_api import exchange
            from serving.http_api.app import create_front
        except ModuleNotFoundError as error:
            raise missing_package("--http-port (BERTLINE_HTTP_PORT)", error.name, "http") from None
        return create_front(
            self.settings,
            self._service,
            self._protocol,
            self.metrics,
            self._memory,
            guards,
            tls=self._tls_files(),
            registry=self._registry,
            grpc_port=lambda: self.port,
            health_problem=lambda: self.health_problem,
            run_canaries=self._canaries.run,
            observers=self._observers(exchange.trace_attributes, exchange.SERVER_FAULTS),
        )

    def _make_room(self) -> None:
        """Close the connections of all fronts whose clients have left replies unread for too long."""
        self._unread.make_room()
        if self._http:
            self._http.make_room()

    async def start(self) -> None:
        """Listen. Until `load` has ended, the health status is NOT_SERVING and calls are refused.

        Raises:
            OSError: when a port is not available.
            ValueError: when a TLS file cannot be used.
        """
        warn_of_plain_text(self.settings)
        self._publish(self._repository.models)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        services = (SERVICE, open_inference.SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(services, self._grpc)
        encoder = route(self._service, ENCODER, encoder_methods(self._service))
        protocol = route(self._service, open_inference.PROTOCOL, self._protocol.methods(), always=open_inference.HEALTH)
        self._grpc.add_generic_rpc_handlers((encoder, protocol))
        settings, files, is_shared = self.settings, self._tls_files(), self._member is not None
        certificates = Certificates(files) if files else None
        self.port = listen(self._grpc, settings, certificates, is_shared=is_shared)
        page = page_socket(self._metrics_host, settings.metrics_port, is_shared=is_shared)
        self._metrics_servers = [MetricsServer(self._registry, page, health_problem=lambda: self.health_problem)]
        self.metrics_port = self._metrics_servers[0].port
        if self._member:
            self._metrics_servers.append(MetricsServer(self.metrics.registry, self._member.page))
        if self._http and settings.http_port is not None:
            if not is_shared:
                check_free(settings.host, settings.http_port, "--http-port")
            await self._http.start(settings.host, settings.http_port, is_shared=is_shared)
        await self._grpc.start()
        if certificates:
            self._tasks.append(asyncio.create_task(certificates.watch(settings.host, self.port, is_shared=is_shared)))

    def _tls_files(self) -> TlsFiles | None:
        settings = self.settings
        if not (settings.tls_cert and settings.tls_key):
            return None
        return TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_client_ca)

    async def load(self) -> None:
        """Load and warm up the models, then accept calls and start to poll the directory.

        Raises:
            ValueError: when no model can be served, or with --strict when one cannot. The message names the errors.
            OSError: when the directory cannot be read.
        """
        await self._repository.load(parallel=self.settings.workers, strict=self.settings.strict)
        for task, name in self.settings.default_model.items():
            if name not in self._repository.models.names:
                logger.warning("--default-model %s=%s: no such model is loaded; requests for it fail", task, name)
        for name in self.settings.space.keys() - {item.name for item in self._repository.models.versions}:
            logger.warning("--space %s=%s: there is no such model", name, self.settings.space[name])
        self._service.unavailable = None
        self._publish(self._repository.models)
        self._tasks.append(asyncio.create_task(self._repository.watch(self.settings.poll_s)))
        self._tasks.append(asyncio.create_task(trim_memory()))

    async def monitor_workers(self) -> None:
        """Monitor workers, run canaries and update health; raise when a worker is stuck.

        Raises:
            RuntimeError: when a run does not end after its abort, so that only a new process has all cores again; or
                when gRPC has stopped by itself.
        """
        ended = asyncio.ensure_future(self._grpc.wait_for_termination())
        while True:
            await asyncio.wait([ended], timeout=MONITOR_S)
            if ended.done():
                raise RuntimeError(f"gRPC accepts no more calls: {ended.exception() or 'it has stopped'}")
            if (problem := self._scheduler.check_workers()) != self._worker_problem:
                self._worker_problem = problem
                logger.log(logging.ERROR if problem else logging.INFO, "workers: %s", problem or "recovered")
                self._publish(self._service.models)
            self._canaries.tick()
            if self._member:
                self._member.board.beat(self._member.number)
                if self._canary_problem:
                    raise RuntimeError(f"{self._canary_problem}; another process takes the place of this one")

    @property
    def is_busy(self) -> bool:
        """True while a thread reads storage, loads a model or decodes a request: these cannot be interrupted."""
        return self._repository.is_busy or self._service.is_busy

    @property
    def health_problem(self) -> str:
        """Reason why the health status of the server is NOT_SERVING; empty if it is SERVING. Thread-safe."""
        if self._health.serving.get("", False):
            return ""
        return self._service.unavailable or self._worker_problem or self._canary_problem or "no model is loaded"

    @property
    def _canary_problem(self) -> str:
        """Why a model does not work any more, with its name; empty if all work."""
        problems = ((model.manifest, problem) for model, problem in self._canaries.problems().items() if problem)
        return next((f"`{item.name}/{item.version}` fails its canary: {problem}" for item, problem in problems), "")

    def reload(self) -> None:
        """Scan the directory of models immediately."""
        self._repository.request_scan()

    async def stop(self, grace_s: float, *, others_serve: bool = False) -> None:
        """Refuse new calls, wait for running calls, and end. A second call with a shorter grace period is allowed.

        Args:
            grace_s: seconds after which running calls are cancelled.
            others_serve: other processes take new connections. Then clients must only lose theirs: they would believe
                a bad health, or a refusal, of this process as one of all.
        """
        settled_s = 0.0
        if not others_serve:
            self._service.unavailable = "the server is draining"
            self._health.drain()
        for task in self._tasks:
            task.cancel()
        if not others_serve:
            settled_s = await self._settle(min(MAX_SETTLE_S, grace_s))
        self._health.end_watches()
        left_s = max(0.0, grace_s - settled_s)
        stopping = [asyncio.ensure_future(self._grpc.stop(left_s))]
        if self._http:
            stopping.append(asyncio.ensure_future(self._http.stop(left_s)))
        await asyncio.wait(stopping, timeout=left_s + MAX_LINGER_S)
        await asyncio.to_thread(self._close)

    async def _settle(self, limit_s: float) -> float:
        """Wait until no new calls arrive, at most `limit_s` seconds; return the seconds waited."""
        started_s = time.monotonic()
        while (began_s := time.monotonic()) - started_s < limit_s:
            num_calls = self._interceptor.num_calls
            await asyncio.sleep(min(QUIET_S, limit_s))
            # If the sleep was long, the event loop was too busy to notice calls.
            if num_calls == self._interceptor.num_calls and time.monotonic() - began_s < 2 * QUIET_S:
                break
        return time.monotonic() - started_s

    def ready(self) -> Ready:
        """Return addresses and models, to be announced after `load`."""
        scheme = "https" if self.settings.tls_cert else "http"
        return Ready(
            target=f"{url_host(self.settings.host)}:{self.port}",
            port=self.port,
            metrics_url=f"http://{url_host(self._metrics_host)}:{self.metrics_port}/metrics",
            metrics_port=self.metrics_port,
            http_url=f"{scheme}://{url_host(self.settings.host)}:{self._http.port}" if self._http else "",
            tls=self.settings.tls_cert is not None,
            models=self._service.models.names,
        )

    def _publish(self, models: Models) -> None:
        """Serve these models and publish their health. A model is healthy if a version is, the server if a model is and
        no canary fails: memory that is full or broken is seldom that of one model. One of several processes is replaced
        instead."""
        self._canaries.watch(models)
        self._service.publish(models)
        self._service.problems = problems = self._canaries.problems()
        healthy = {"": False, SERVICE: False, open_inference.SERVICE: False}
        for item in models.versions:
            serves = bool(item.model) and not self._service.unavailable
            works = serves and (bool(self._member) or not (self._worker_problem or any(problems.values())))
            for service in ("", SERVICE, open_inference.SERVICE):
                healthy[service] = healthy[service] or works
            works = serves and not (self._worker_problem or (item.model and problems[item.model]))
            for service in (f"{SERVICE}/{item.name}", f"{SERVICE}/{item}"):
                healthy[service] = healthy.get(service, False) or works
        self._health.publish({service: SERVING if serves else NOT_SERVING for service, serves in healthy.items()})

    def _is_healthy(self, model: str) -> bool:
        return self._health.serving.get(f"{SERVICE}/{model}" if model else "", False)

    def _close(self) -> None:
        self._scheduler.close()
        self._service.close()
        for server in self._metrics_servers:
            server.close()
        if self._traces:
            self._traces.close()
