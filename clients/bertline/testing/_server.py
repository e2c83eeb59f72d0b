"""Fake server: real gRPC, made-up answers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace, TracebackType
from typing import Any

import grpc

from bertline._protos import HEALTH, NOT_SERVING, SERVICE_UNKNOWN, SERVING, HealthReply, HealthRequest
from bertline._status import REQUEST_ID
from bertline.testing._answers import answer
from bertline.testing._faults import Fault, Refusal
from bertline.testing._models import FakeModel, choose_model
from bertline.testing._relay import Relay
from bertline.v1 import encoder_pb2 as pb
from bertline.v1.encoder_pb2_grpc import add_EncoderServicer_to_server

SERVICE = pb.DESCRIPTOR.services_by_name["Encoder"]
METHODS = tuple(SERVICE.methods_by_name)
_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 25_000),  # as a real server allows
    ("grpc.keepalive_permit_without_calls", 1),
)
_MAX_THREADS = 1000
"""Maximum number of threads: each call and each health watch holds one."""


@dataclass(frozen=True)
class FakeCall:
    """Call that the server received. Refused and repeated calls count too."""

    method: str
    """Name of the RPC, such as `Embed`."""
    request: Any
    """Message of `bertline.v1.encoder_pb2`."""
    metadata: dict[str, str]
    timeout: float | None
    """Seconds until the client gives up; None for never."""
    peer: str
    """Address of the client's connection: equal for calls of one connection, different for others."""


class FakeServer:
    """Server on a port of 127.0.0.1, from construction until `close`.

    Every RPC answers, and the answer follows from the request alone: the vector of a text is `vector(text, dim)`, an
    answer is the question's last word where it stands in the context, an entity is a word with a capital. Empty texts,
    texts that are too long and unknown models are refused with the statuses of a real server.

    Args:
        models: models of the server; by default one that answers every RPC.
        token: token that calls must carry; None for none.
        port: 0 for a free one.

    Raises:
        OSError: if the port is taken.
    """

    def __init__(
        self, models: Sequence[FakeModel] = (FakeModel(),), *, token: str | None = None, port: int = 0
    ) -> None:
        self.models = list(models)
        """Models of the server. May be changed at any time."""
        self.calls: list[FakeCall] = []
        """Calls in the order they came, without health checks."""
        self.max_in_flight = 0
        """Maximum number of simultaneous calls."""
        self._token, self._serving, self._in_flight = token, True, 0
        self._faults: list[Fault] = []
        self._refused: dict[str, str] = {}
        self._replies: dict[str, Callable[[Any], Any]] = {}
        self._lock = threading.Lock()
        self._health_changed = threading.Condition()
        self._pool = ThreadPoolExecutor(_MAX_THREADS)
        self._server = grpc.server(self._pool, options=_OPTIONS)
        servicer: Any = SimpleNamespace(**{name: partial(self._call, name) for name in METHODS})
        add_EncoderServicer_to_server(servicer, self._server)
        self._server.add_generic_rpc_handlers((self._health_handler(),))
        upstream_port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()  # a server that never started would leave its port open
        try:
            self._relay = Relay(upstream_port, port)
        except OSError:
            self._server.stop(None).wait()
            self._pool.shutdown()
            raise
        self.target = f"127.0.0.1:{self._relay.port}"
        """`host:port` for clients."""

    @property
    def requests(self) -> list[Any]:
        """Messages of `calls`."""
        return [call.request for call in self.calls]

    @property
    def serving(self) -> bool:
        """True if health checks report SERVING, for the server and its models. Calls are answered in any case."""
        return self._serving

    @serving.setter
    def serving(self, value: bool) -> None:
        self._serving = value
        self._wake_watches()

    def fail(
        self,
        status: str | grpc.StatusCode = "UNAVAILABLE",
        details: str = "made to fail",
        *,
        method: str = "",
        times: int | None = 1,
        after: int = 0,
        pushback_ms: int | None = None,
    ) -> None:
        """Make the next calls fail with a status.

        Args:
            status: gRPC status, or its name.
            details: message of the status.
            method: name of an RPC, such as `Embed`; empty for all.
            times: calls that fail; None for all until `reset`. Clients send a call again after UNAVAILABLE and
                RESOURCE_EXHAUSTED, twice.
            after: calls that are answered first. Calls that fail by an earlier fault do not count.
            pushback_ms: milliseconds after which the client may try again; negative for never.

        Raises:
            ValueError: for OK or an unknown status, and for a `pushback_ms` of 0, on which gRPC's client waits forever.
        """
        if pushback_ms == 0:
            raise ValueError("`pushback_ms` must not be 0; use 1")
        name = status if isinstance(status, str) else status.name
        if name == "OK" or name not in grpc.StatusCode.__members__:
            raise ValueError(
                f"a call cannot fail with status `{name}`; give a gRPC status other than OK, such as UNAVAILABLE"
            )
        self._add(Fault(method, times, after, refusal=Refusal(name, details, pushback_ms=pushback_ms)))

    def overload(
        self, *, method: str = "", times: int | None = 1, after: int = 0, pushback_ms: int | None = 100
    ) -> None:
        """Make the next calls fail because the queue is full. See `fail` for the arguments."""
        details, name = "the queue is full", "RESOURCE_EXHAUSTED"
        self.fail(name, details, method=method, times=times, after=after, pushback_ms=pushback_ms)

    def delay(self, seconds: float, *, method: str = "", times: int | None = None, after: int = 0) -> None:
        """Delay the next calls by some seconds before they are answered or fail. See `fail` for the other arguments."""
        if seconds <= 0:
            raise ValueError(f"`seconds` must be above 0: `{seconds}`")
        self._add(Fault(method, times, after, delay_s=float(seconds)))

    def drop(self, *, method: str = "", times: int | None = 1, after: int = 0) -> None:
        """Cut all connections when the next calls come, so that these and all calls under way are lost."""
        self._add(Fault(method, times, after, drops=True))

    def silence(self) -> None:
        """Pass nothing in either direction until `reset`, as if the machine had vanished."""
        self._relay.silence(True)

    def refuse(self, text: str, reason: str = "made to be refused") -> None:
        """Refuse an input that is, or contains, this text: the client raises InvalidInput."""
        self._refused[text] = reason

    def reply(self, method: str, make: Callable[[Any], Any]) -> None:
        """Answer an RPC with a function of the request. Messages are those of `bertline.v1.encoder_pb2`."""
        self._replies[_checked_method(method)] = make

    def reset(self) -> None:
        """Remove all recorded calls, faults, refusals and replies, and serve again."""
        with self._lock:
            self._faults.clear()
        self._refused.clear()
        self._replies.clear()
        self._relay.silence(False)
        self.calls.clear()
        self.max_in_flight = 0
        self.serving = True

    def close(self) -> None:
        """Stop the server; calls under way fail. May be called again."""
        self._server.stop(None).wait()
        self._relay.close()
        self._pool.shutdown()

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _add(self, fault: Fault) -> None:
        if fault.method:
            _checked_method(fault.method)
        if (fault.times is not None and fault.times < 1) or fault.after < 0:
            raise ValueError(f"`times` must be at least 1, and `after` 0: `{fault.times}`, `{fault.after}`")
        with self._lock:
            self._faults.append(fault)

    def _take_faults(self, method: str) -> list[Fault]:
        """Return the faults of one call: at most a delay, and then a failure."""
        with self._lock:
            fitting = [fault for fault in self._faults if fault.method in ("", method)]
            delays = [fault for fault in fitting if fault.delay_s]
            failures = [fault for fault in fitting if not fault.delay_s]
            taken = [fault for fault in delays[:1] + failures[:1] if fault.happens()]
            self._faults = [fault for fault in self._faults if fault.times != 0]
            return taken

    def _call(self, method: str, request: Any, context: grpc.ServicerContext) -> Any:
        metadata = dict(context.invocation_metadata())
        call = FakeCall(method, request, metadata, context.time_remaining(), context.peer())
        context.set_trailing_metadata(((REQUEST_ID, metadata.get(REQUEST_ID) or os.urandom(8).hex()),))
        with self._lock:
            self.calls.append(call)
            self._in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self._in_flight)
        try:
            self._admit(context)
            self._apply_faults(method, context)
            return self._answer(method, request)
        except Refusal as refusal:
            refusal.abort(context)
        finally:
            with self._lock:
                self._in_flight -= 1

    def _admit(self, context: grpc.ServicerContext) -> None:
        sent = dict(context.invocation_metadata()).get("authorization")
        if self._token and sent != f"Bearer {self._token}":
            raise Refusal("UNAUTHENTICATED", "the token is not valid" if sent else "the call has no token")

    def _apply_faults(self, method: str, context: grpc.ServicerContext) -> None:
        has_ended = threading.Event()
        if not context.add_callback(has_ended.set):  # it has ended already
            has_ended.set()
        for fault in self._take_faults(method):
            if fault.refusal:
                raise fault.refusal
            if fault.drops:
                self._relay.drop()
            has_ended.wait(fault.delay_s or None)

    def _answer(self, method: str, request: Any) -> Any:
        if method in self._replies:
            return self._replies[method](request)
        if method == "ListModels":
            return pb.ListModelsReply(models=[model.info for model in self.models])
        model = choose_model(self.models, method, request.model)
        if method == "GetModel":
            return model.info
        return answer(method, request, model, self._refused)

    def _health_handler(self) -> grpc.GenericRpcHandler:
        codec = {"request_deserializer": HealthRequest.FromString, "response_serializer": HealthReply.SerializeToString}
        handlers = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check_health, **codec),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch_health, **codec),
        }
        return grpc.method_handlers_generic_handler(HEALTH.strip("/"), handlers)

    def _check_health(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._admit_health(context)
        if (status := self._health(request.service)) == SERVICE_UNKNOWN:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no such service: `{request.service}`")
        return HealthReply(status=status)

    def _watch_health(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        self._admit_health(context)
        context.add_callback(self._wake_watches)
        sent = None
        while context.is_active():
            if (status := self._health(request.service)) != sent:
                yield HealthReply(status=status)
                sent = status
            with self._health_changed:
                while context.is_active() and self._health(request.service) == sent:
                    self._health_changed.wait()

    def _admit_health(self, context: grpc.ServicerContext) -> None:
        try:
            self._admit(context)
        except Refusal as refusal:
            refusal.abort(context)

    def _health(self, service: str) -> int:
        serving = [model for model in self.models if model.serves]
        names = {f"{SERVICE.full_name}/{name}" for model in serving for name in (model.name, model)}
        if service not in ("", SERVICE.full_name, *names):
            return SERVICE_UNKNOWN
        return SERVING if self._serving else NOT_SERVING

    def _wake_watches(self) -> None:
        with self._health_changed:
            self._health_changed.notify_all()


def _checked_method(method: str) -> str:
    """Return the name of an RPC. Raise ValueError if no RPC has it."""
    if method not in METHODS:
        raise ValueError(f"no RPC of that name: `{method}` (one of: {', '.join(METHODS)})")
    return method
