"""The gRPC server around the service: ports, health, reflection, start and drain."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from serving.core.bearer_tokens import BearerTokens
from serving.core.budget import Budget
from serving.core.cache import ReplyCache
from serving.core.calls import Call
from serving.core.limits import Limits
from serving.core.metrics import Metrics
from serving.core.models import Model, Models, load_model
from serving.core.repository import Repository
from serving.core.scheduler import Scheduler
from serving.core.service import Servicer
from serving.grpc_api.encoder import METHODS, SERVICE, Encoder
from serving.grpc_api.health import NOT_SERVING, SERVING, HealthServicer
from serving.grpc_api.interceptor import Gate
from serving.grpc_api.listening import (
    channel_options,
    check_free,
    listen,
    max_message_bytes,
    url_host,
    warn_of_plain_text,
)
from serving.grpc_api.receiving import Receiving
from serving.grpc_api.rpc_metrics import RpcMetrics
from serving.grpc_api.status import SERVER_FAULTS, trace_attributes
from serving.grpc_api.tls import Certificates, TlsFiles
from serving.open_inference import service as open_inference
from serving.open_inference.service import OpenInference
from serving.process import streams
from serving.process.call_log import CallLog
from serving.process.logs import GrpcLogFilter
from serving.process.memory_trim import trim_memory
from serving.process.metrics_server import MetricsServer
from serving.process.traces import Traces
from serving.settings import Settings

HEALTH_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
WATCH_S = 1.0
"""How often workers are looked after."""
QUIET_S = 0.1
MAX_SETTLE_S = 1.0
"""A draining server still takes calls, to refuse them, until none has come for QUIET_S: once gRPC stops, it cancels
those that have come but were not yet handled, and CANCELLED does not tell a client to try elsewhere."""
MAX_LINGER_S = 0.5
"""gRPC waits for connections of clients that read no more until the system gives them up, long after the grace."""

logger = logging.getLogger(__name__)
logging.getLogger("grpc._cython.cygrpc").addFilter(GrpcLogFilter())


class Server:
    """Serves a directory of models. `start`, then `load`, then `stop`, in one event loop."""

    def __init__(self, settings: Settings) -> None:
        """Make it.

        Raises:
            ValueError: when the file of tokens is no use, or OpenTelemetry is wanted and not installed.
            OSError: when the file of tokens cannot be read.
        """
        self.settings = settings
        self.metrics = Metrics()
        self.port = 0
        """Where it listens, once started."""
        self.metrics_port = 0
        self._metrics_host = settings.metrics_host or settings.host
        self._health = HealthServicer()
        self._traces = Traces(settings.trace_endpoint, settings.trace_sample) if settings.trace_endpoint else None
        self._grpc = grpc.aio.server(options=list(channel_options(settings)), interceptors=[self._gate()])
        self._scheduler = Scheduler(
            workers=settings.workers,
            observer=self.metrics,
            max_queue_s=settings.max_queue_s,
            max_run_s=settings.max_run_s,
        )
        cache: ReplyCache[Model] | None = ReplyCache(settings.cache_bytes) if settings.cache_bytes else None
        limits = Limits(settings.max_texts, settings.max_chars)
        self._servicer = Servicer(self._scheduler, self.metrics, limits, cache)
        self._repository = Repository(
            settings.models_dir,
            partial(
                load_model,
                max_batch_tokens=settings.max_batch_tokens,
                num_threads=settings.num_threads,
                workers=settings.workers,
            ),
            self.metrics,
            self._publish,
            max_versions=settings.max_versions,
        )
        self.metrics.collect_server(
            states=self._repository.states,
            scan_age_s=lambda: self._repository.scan_age_s,
            serving=lambda: self._health.serving,
            queued_sequences=self._scheduler.queued_sequences,
            queued_tokens=self._scheduler.queued_tokens,
        )
        self.metrics.collect_log(streams.num_dropped)
        if cache is not None:
            self.metrics.collect_cache(lambda: cache.num_bytes, lambda: len(cache))
        self._watching: list[asyncio.Task[None]] = []
        self._trouble = ""
        """What is wrong with the workers."""
        self._metrics_server: MetricsServer | None = None

    def _gate(self) -> Gate:
        settings = self.settings
        half = settings.buffer_bytes // 2
        observers: list[Callable[[Call], None]] = [CallLog(settings.log_calls)]
        if self._traces:
            observers.append(self._traces.observer(trace_attributes, SERVER_FAULTS))
        return Gate(
            self.metrics,
            RpcMetrics(self.metrics.registry, {SERVICE: METHODS, open_inference.SERVICE: open_inference.METHODS}),
            tokens=BearerTokens(settings.tokens_file) if settings.tokens_file else None,
            open_health=settings.open_health,
            max_concurrent_per_client=settings.max_concurrent_per_client,
            max_request_bytes=settings.max_request_bytes,
            receiving=Receiving(
                half, max_message_bytes(settings), settings.receive_s, lambda _: self.metrics.refused("receiving")
            ),
            budget=Budget(half),
            patience_s=settings.keepalive_timeout_s,
            observers=observers,
        )

    async def start(self) -> None:
        """Listen. Health says NOT_SERVING, and calls are refused, until `load` is done.

        Raises:
            OSError: when a port cannot be had.
            ValueError: when a file of TLS is no use.
        """
        warn_of_plain_text(self.settings)
        self._publish(self._repository.models)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        services = (SERVICE, open_inference.SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(services, self._grpc)
        self._grpc.add_generic_rpc_handlers(
            (Encoder(self._servicer).handlers(), OpenInference(self._servicer, self._is_healthy).handlers())
        )
        certificates = self._certificates()
        self.port = listen(self._grpc, self.settings, certificates)
        self.metrics_port = self._serve_metrics(self.settings.metrics_port)
        await self._grpc.start()
        if certificates:
            self._watching.append(asyncio.create_task(certificates.watch(self.settings.host, self.port)))

    def _certificates(self) -> Certificates | None:
        settings = self.settings
        if not (settings.tls_cert and settings.tls_key):
            return None
        return Certificates(TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_client_ca))

    async def load(self) -> None:
        """Load and warm up the models, then accept calls, and watch the directory from now on.

        Raises:
            ValueError: when nothing can be served, or in strict mode not all, telling why.
            OSError: when the directory cannot be read.
        """
        await self._repository.load(parallel=self.settings.workers, strict=self.settings.strict)
        self._servicer.unavailable = None
        self._publish(self._repository.models)
        self._watching.append(asyncio.create_task(self._repository.watch(self.settings.poll_s)))
        self._watching.append(asyncio.create_task(trim_memory()))

    async def monitor_workers(self) -> None:
        """Let health tell of runs that hang and workers that have ended, until one is lost for good.

        Raises:
            RuntimeError: when a run does not end even when aborted; only a new process has all cores again. Also when
                gRPC no longer takes calls.
        """
        ended = asyncio.ensure_future(self._grpc.wait_for_termination())
        while True:
            await asyncio.wait([ended], timeout=WATCH_S)
            if ended.done():
                raise RuntimeError(f"gRPC takes no more calls: {ended.exception() or 'it has stopped'}")
            if (trouble := self._scheduler.check_workers()) != self._trouble:
                self._trouble = trouble
                logger.log(logging.ERROR if trouble else logging.INFO, "workers: %s", trouble or "all is well again")
                self._publish(self._servicer.models)

    @property
    def is_busy(self) -> bool:
        """Whether a thread looks at storage, loads a model or reads a request: nothing can end that early."""
        return self._repository.is_busy or self._servicer.is_busy

    def reload(self) -> None:
        """Look at once for what changed in the directory of models."""
        self._repository.request_scan()

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let those in flight finish, and end. Call again with less grace to hasten it.

        Args:
            grace_s: seconds until those that have not finished are cancelled.
        """
        self._servicer.unavailable = "the server is draining"
        self._health.drain()
        for task in self._watching:
            task.cancel()
        settled_s = await self._settle(min(MAX_SETTLE_S, grace_s))
        self._health.end_watches()
        left_s = max(0.0, grace_s - settled_s)
        await asyncio.wait([asyncio.ensure_future(self._grpc.stop(left_s))], timeout=left_s + MAX_LINGER_S)
        await asyncio.to_thread(self._close)

    async def _settle(self, limit_s: float) -> float:
        """Wait until no calls come any more; returns how long that took, in seconds."""
        started, seen = time.monotonic(), -1
        while seen != self._servicer.num_calls and time.monotonic() - started < limit_s:
            seen = self._servicer.num_calls
            await asyncio.sleep(min(QUIET_S, limit_s))
        return time.monotonic() - started

    def summary(self) -> str:
        """One line: how many models, and where."""
        count = len(self._servicer.models.names)
        return (
            f"serving {count} model{'s' * (count != 1)} on {url_host(self.settings.host)}:{self.port}, "
            f"metrics on http://{url_host(self._metrics_host)}:{self.metrics_port}/metrics"
        )

    def _serve_metrics(self, port: int) -> int:
        try:
            check_free(self._metrics_host, port)
        except OSError as error:
            raise OSError(f"metrics: {error}, with --metrics-port") from error
        self._metrics_server = MetricsServer(self.metrics.registry, self._metrics_host, port)
        return self._metrics_server.port

    def _publish(self, models: Models) -> None:
        """Answer with these from now on. A model is healthy when one of its versions is; so is the server."""
        self._servicer.publish(models)
        healthy = {"": False, SERVICE: False, open_inference.SERVICE: False}
        for item in models.versions:
            serves = bool(item.model) and not self._servicer.unavailable and not self._trouble
            for service in ("", SERVICE, open_inference.SERVICE, f"{SERVICE}/{item.name}", f"{SERVICE}/{item}"):
                healthy[service] = healthy.get(service, False) or serves
        self._health.publish({service: SERVING if serves else NOT_SERVING for service, serves in healthy.items()})

    def _is_healthy(self, model: str) -> bool:
        return self._health.serving.get(f"{SERVICE}/{model}" if model else "", False)

    def _close(self) -> None:
        self._scheduler.close()
        self._servicer.close()
        if self._metrics_server:
            self._metrics_server.close()
        if self._traces:
            self._traces.close()
