"""The fake server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

import grpc
from google.protobuf import message_factory

from bertline.testing._answers import ANSWERS, TIMINGS
from bertline.testing._checks import check
from bertline.testing._faults import Fault, Faults, Refusal
from bertline.testing._health import FakeHealth
from bertline.testing._models import FakeModel, choose_model
from bertline.testing._relay import Relay
from bertline.v1 import encoder_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["Encoder"]
METHODS = tuple(SERVICE.methods_by_name)
_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 25_000),  # as a server of Bertline allows
    ("grpc.keepalive_permit_without_calls", 1),
)
_MAX_THREADS = 1000
"""Each call, and each client that watches the health, has one."""


@dataclass(frozen=True)
class FakeCall:
    """A call that came, refused and repeated ones included."""

    method: str
    """Name of the RPC, as `Embed`."""
    request: Any
    """The message, of `bertline.v1.encoder_pb2`."""
    metadata: dict[str, str]
    timeout: float | None
    """Seconds that the client would wait; None for ever."""
    peer: str
    """The connection that it came over: the same for all its calls, another for each other one."""


class FakeServer:
    """A server on a free port of 127.0.0.1, from when it is made until it is closed.

    Every RPC answers, with what follows from the request alone: the vector of a text is `vector(text, dim)`, an answer
    is the last word of the question where it stands in the context, an entity is a word with a capital. Empty texts,
    texts that are too long and unknown models are refused as a server does.

    Args:
        models: what it has; one that answers everything, where none are given.
        token: which calls must carry; None for none.
        open_health: whether health checks need no token.
        port: 0 for a free one.

    Raises:
        OSError: when the port is taken.
    """

    def __init__(
        self,
        models: Sequence[FakeModel] = (FakeModel(),),
        *,
        token: str | None = None,
        open_health: bool = False,
        port: int = 0,
    ) -> None:
        self.models = list(models)
        """May be changed at any time."""
        self.calls: list[FakeCall] = []
        """What came, in order; health checks left out."""
        self.max_in_flight = 0
        """Most calls that were under way at one time."""
        self._token = token
        self._open_health = open_health
        self._in_flight = 0
        self._faults = Faults()
        self._refused: dict[str, str] = {}
        self._replies: dict[str, Callable[[Any], Any]] = {}
        self._lock = threading.Lock()
        self._health = FakeHealth(self._services, self._admit_health)
        self._pool = ThreadPoolExecutor(_MAX_THREADS)
        self._server = grpc.server(self._pool, options=_OPTIONS)
        self._server.add_generic_rpc_handlers((self._encoder(), self._health.handler()))
        upstream_port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()  # or stopping it would leave its port open
        try:
            self._relay = Relay(upstream_port, port)
        except OSError:
            self._server.stop(None).wait()
            self._pool.shutdown()
            raise
        self.target = f"127.0.0.1:{self._relay.port}"
        """What a client connects to."""

    @property
    def requests(self) -> list[Any]:
        """The messages of `calls`."""
        return [call.request for call in self.calls]

    @property
    def serving(self) -> bool:
        """What health checks are told, of the server and its models; calls are answered all the same."""
        return self._health.serving

    @serving.setter
    def serving(self, value: bool) -> None:
        self._health.serving = value

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
        """Let the next calls end with a status.

        Args:
            method: name of an RPC, as `Embed`; empty for all.
            times: how many; None for all until `reset`. Clients send a call again after UNAVAILABLE and
                RESOURCE_EXHAUSTED, twice.
            after: how many calls are answered before; those that fail by an earlier fault do not count.
            pushback_ms: when the client may try again; negative for never. 0, which lets gRPC's client wait for ever,
                is refused.
        """
        if pushback_ms == 0:
            raise ValueError("`pushback_ms` must not be 0; use 1")
        name = status if isinstance(status, str) else status.name
        if name == "OK" or name not in grpc.StatusCode.__members__:
            raise ValueError(f"no status that a call can fail with: `{name}`; one of gRPC's, as UNAVAILABLE")
        self._add(Fault(method, times, after, refusal=Refusal(name, details, pushback_ms=pushback_ms)))

    def overload(
        self, *, method: str = "", times: int | None = 1, after: int = 0, pushback_ms: int | None = 100
    ) -> None:
        """Let the next calls be refused since the queue is full, see `fail`."""
        details, name = "the queue is full", "RESOURCE_EXHAUSTED"
        self.fail(name, details, method=method, times=times, after=after, pushback_ms=pushback_ms)

    def delay(self, seconds: float, *, method: str = "", times: int | None = None, after: int = 0) -> None:
        """Let the next calls wait before they are answered, or fail."""
        if seconds <= 0:
            raise ValueError(f"`seconds` must be above 0: `{seconds}`")
        self._add(Fault(method, times, after, delay_s=seconds))

    def drop(self, *, method: str = "", times: int | None = 1, after: int = 0) -> None:
        """Let the next calls lose their connection, and with it all other calls that are under way."""
        self._add(Fault(method, times, after, drops=True))

    def silence(self) -> None:
        """Let nothing pass in either direction any more, until `reset`, as where a machine vanished."""
        self._relay.silence(True)

    def refuse(self, text: str, reason: str = "made to be refused") -> None:
        """Refuse an input, or a text in it, as one that cannot be used: the client raises InvalidInput."""
        self._refused[text] = reason

    def reply(self, method: str, make: Callable[[Any], Any]) -> None:
        """Answer an RPC with what a function makes of the request; messages are those of `bertline.v1.encoder_pb2`."""
        self._replies[_known(method)] = make

    def reset(self) -> None:
        """Forget all calls, faults and answers of its own; serve again."""
        self._faults.clear()
        self._refused.clear()
        self._replies.clear()
        self._relay.silence(False)
        self.calls.clear()
        self.max_in_flight = 0
        self.serving = True

    def close(self) -> None:
        """End; calls under way fail. Again is fine."""
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
            _known(fault.method)
        if fault.times is not None and fault.times < 1:
            raise ValueError(f"`times` must be at least 1: `{fault.times}`")
        if fault.after < 0:
            raise ValueError(f"`after` must not be negative: `{fault.after}`")
        self._faults.add(fault)

    def _encoder(self) -> grpc.GenericRpcHandler:
        handlers = {}
        for name, method in SERVICE.methods_by_name.items():
            request, reply = map(message_factory.GetMessageClass, (method.input_type, method.output_type))
            handlers[name] = grpc.unary_unary_rpc_method_handler(
                partial(self._call, name),
                request_deserializer=request.FromString,
                response_serializer=reply.SerializeToString,
            )
        return grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)

    def _call(self, method: str, request: Any, context: grpc.ServicerContext) -> Any:
        call = FakeCall(method, request, dict(context.invocation_metadata()), context.time_remaining(), context.peer())
        with self._lock:
            self.calls.append(call)
            self._in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self._in_flight)
        try:
            self._admit(context)
            self._meet_faults(method, context)
            return self._answer(method, request)
        except Refusal as refusal:
            refusal.abort(context)
        finally:
            with self._lock:
                self._in_flight -= 1

    def _admit(self, context: grpc.ServicerContext) -> None:
        came = dict(context.invocation_metadata()).get("authorization")
        if self._token and came != f"Bearer {self._token}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no valid token came" if came else "no token came")

    def _meet_faults(self, method: str, context: grpc.ServicerContext) -> None:
        gone = threading.Event()
        if not context.add_callback(gone.set):  # the call has ended
            gone.set()
        for fault in self._faults.take(method):
            if fault.refusal:
                raise fault.refusal
            if fault.drops:
                self._relay.drop()
            gone.wait(fault.delay_s or None)

    def _answer(self, method: str, request: Any) -> Any:
        if method in self._replies:
            return self._replies[method](request)
        if method == "ListModels":
            return pb.ListModelsReply(models=[model.info for model in self.models])
        model = choose_model(self.models, method, request.model)
        if method == "GetModel":
            return model.info
        num_tokens, num_truncated = check(method, request, model, self._refused)
        reply = ANSWERS[method](model, request)
        reply.model.CopyFrom(model.ref)
        reply.timings.CopyFrom(TIMINGS)
        if method != "Tokenize":
            reply.num_tokens[:], reply.num_truncated[:] = num_tokens, num_truncated
        return reply

    def _services(self) -> list[str]:
        """Whose health can be asked, named as a server names them."""
        serving = [model for model in self.models if model.serves]
        names = {f"{SERVICE.full_name}/{name}" for model in serving for name in (model.name, model)}
        return ["", SERVICE.full_name, *sorted(names)]

    def _admit_health(self, context: grpc.ServicerContext) -> None:
        if not self._open_health:
            self._admit(context)


def _known(method: str) -> str:
    if method not in METHODS:
        raise ValueError(f"no RPC of that name: `{method}` (one of: {', '.join(METHODS)})")
    return method
