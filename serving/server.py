"""The gRPC server around the service: ports, health, reflection, start and drain."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from serving.health import NOT_SERVING, SERVING, HealthServicer
from serving.metrics import Metrics, MetricsServer
from serving.models import Models, load_model
from serving.repository import Repository
from serving.scheduler import Scheduler
from serving.servicer import METHODS, SERVICE, Servicer
from serving.settings import Settings

HEALTH_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
QUIET_S = 0.1
MAX_SETTLE_S = 1.0
"""A draining server still takes calls, to refuse them, until none has come for QUIET_S: once gRPC stops, it cancels
those that have come but were not yet handled, and CANCELLED does not tell a client to try elsewhere."""


class Server:
    """Serves a directory of models. `start`, then `load`, then `stop`, in one event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics(SERVICE, METHODS)
        self.port = 0
        """Where it listens, once started."""
        self.metrics_port = 0
        self._health = HealthServicer()
        self._scheduler = Scheduler(
            workers=settings.workers,
            observer=self.metrics,
            max_queue_s=settings.max_queue_s,
            max_run_s=settings.max_run_s,
        )
        self._servicer = Servicer(self._scheduler, self.metrics)
        self._repository = Repository(
            settings.models_dir,
            partial(load_model, max_batch_tokens=settings.max_batch_tokens),
            self.metrics,
            self._publish,
            max_versions=settings.max_versions,
        )
        self.metrics.watch(self._repository.states, self._scheduler.queued_tokens)
        self._watching: asyncio.Task[None] | None = None
        self._grpc = grpc.aio.server(options=list(_options(settings)))
        self._metrics_server: MetricsServer | None = None

    async def start(self) -> None:
        """Listen. Health says NOT_SERVING, and calls are refused, until `load` is done.

        Raises:
            OSError: when a port cannot be had.
        """
        self._publish(self._repository.models)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        reflection.enable_server_reflection((SERVICE, HEALTH_SERVICE, reflection.SERVICE_NAME), self._grpc)
        self._grpc.add_generic_rpc_handlers((self._servicer.handlers(),))
        self.port = self._bind(self.settings.port)
        self.metrics_port = self._serve_metrics(self.settings.metrics_port)
        await self._grpc.start()

    async def load(self) -> None:
        """Load and warm up the models, then accept calls, and watch the directory from now on.

        Raises:
            ValueError: when nothing can be served, or in strict mode not all, telling why.
            OSError: when the directory cannot be read.
        """
        await self._repository.load(parallel=self.settings.workers, strict=self.settings.strict)
        self._servicer.unavailable = None
        self._publish(self._repository.models)
        self._watching = asyncio.create_task(self._repository.watch(self.settings.poll_s))

    def reload(self) -> None:
        """Look at once for what changed in the directory of models."""
        self._repository.wake()

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let those in flight finish, and end. Call again with less grace to hasten it.

        Args:
            grace_s: seconds until those that have not finished are cancelled.
        """
        self._servicer.unavailable = "the server is draining"
        self._health.drain()
        if self._watching:
            self._watching.cancel()
        settled_s = await self._settle(min(MAX_SETTLE_S, grace_s))
        self._health.end_watches()
        await self._grpc.stop(max(0.0, grace_s - settled_s))
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
        host = _url_host(self.settings.host)
        return (
            f"serving {count} model{'s' * (count != 1)} on {host}:{self.port}, "
            f"metrics on http://{host}:{self.metrics_port}/metrics"
        )

    def _bind(self, port: int) -> int:
        _check_free(self.settings.host, port)
        address = f"{_url_host(self.settings.host)}:{port}"
        try:
            return self._grpc.add_insecure_port(address)
        except RuntimeError as error:  # someone took it since the check
            raise OSError(f"cannot listen on `{address}`: {error}") from error

    def _serve_metrics(self, port: int) -> int:
        try:
            _check_free(self.settings.host, port)
        except OSError as error:
            raise OSError(f"metrics: {error}, with --metrics-port") from error
        self._metrics_server = MetricsServer(self.metrics, self.settings.host, port)
        return self._metrics_server.port

    def _publish(self, models: Models) -> None:
        """Answer with these from now on. A model is healthy when one of its versions is; so is the server."""
        self._servicer.models = models
        healthy = {"": False, SERVICE: False}
        for item in models.versions:
            serves = item.model is not None and not self._servicer.unavailable
            for service in ("", SERVICE, f"{SERVICE}/{item.name}", f"{SERVICE}/{item}"):
                healthy[service] = healthy.get(service, False) or serves
        self._health.publish({service: SERVING if serves else NOT_SERVING for service, serves in healthy.items()})

    def _close(self) -> None:
        self._scheduler.close()
        self._servicer.close()
        if self._metrics_server:
            self._metrics_server.close()


def _options(settings: Settings) -> Iterator[tuple[str, int]]:
    yield "grpc.so_reuseport", 0  # else a second server would share a busy port in silence
    yield "grpc.max_receive_message_length", settings.max_request_bytes
    yield "grpc.max_send_message_length", -1
    # Clients may ping every 30 s, with or without calls; the rest is for pings that come a little early.
    yield "grpc.keepalive_permit_without_calls", 1
    yield "grpc.http2.min_ping_interval_without_data_ms", 25_000


def _check_free(host: str, port: int) -> None:
    """gRPC tells of a busy port in the log of its core only; this tells in an error.

    Raises:
        OSError: naming the address, when it is taken, or when none of what the host resolves to is ours.
    """
    try:
        targets = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        errors = [error for target in targets if (error := _listen_error(*target))]
        if len(errors) == len(targets) or any(error.errno == errno.EADDRINUSE for error in errors):
            raise errors[-1]
    except OSError as error:
        address, reason = f"{_url_host(host)}:{port}", (error.strerror or str(error)).lower()
        raise OSError(f"cannot listen on `{address}`: {reason}; choose another host or port (0 takes any)") from None


def _listen_error(family: int, kind: int, protocol: int, _: str, address: Any) -> OSError | None:
    try:
        with closing(socket.socket(family, kind, protocol)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        return error
    return None


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
