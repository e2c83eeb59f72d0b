"""The way of every call: request bytes -> features -> scheduler -> predictions -> reply bytes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import grpc

from serving.core.admission import Admitted, Incoming, Intake, note_model
from serving.core.cache import Known, ReplyCache, request_key
from serving.core.calls import Stage
from serving.core.codec_pool import NUM_THREADS, SMALL_BYTES, CodecPool
from serving.core.errors import RefusedError, UnavailableError
from serving.core.future_bridge import FutureBridge
from serving.core.limits import Limits
from serving.core.metrics import CODEC, TOKENIZE, Metrics
from serving.core.models import Model, Models
from serving.core.scheduler import JobResult, Scheduler
from serving.grpc_api.current import current_call
from tasks.features import Features

OUTPUTS_PER_BYTE = 4
"""So many numbers of a graph's output take no longer to become a reply than a byte of a request to become features. A
few tokens of a masked language model have hundreds of thousands, of which the reply may hold all."""
ADMITTED_BYTES = 64 * 1024
"""What is smaller is parsed and admitted there: a refusal then does not wait for others' texts to become tokens."""
TOKENIZE_BYTES = 4 * 2**20
"""Bytes of `Tokenize` requests that may wait: some ten seconds of work."""

INPUT_BYTES, WINDOW_BYTES, TOKEN_BYTES = 2048, 4096, 16
"""Memory of an input while it waits to be computed and answered, of each window but one that it is read in, and of each
of its tokens."""

Behaviour = Callable[[bytes, Any], Awaitable[bytes]]


class Computable(Protocol):
    """A request of any service, ready to be computed."""

    @property
    def model(self) -> Model:
        """What computes it."""

    @property
    def windows(self) -> Sequence[Sequence[Features]]:
        """The sequences of each of its results."""

    def finish(self, index: int, outputs: list[Any]) -> Any:
        """One result, of the outputs for its sequences."""

    def reply(self, done: JobResult) -> Reply:
        """The reply, serialised."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A serialised message."""

    whole: bytes
    num_timing_bytes: int = 0
    """Bytes at the end of `whole` that hold the timings."""

    @property
    def lasting(self) -> bytes:
        """The reply without timings, which may be sent again for the same request."""
        return self.whole[: len(self.whole) - self.num_timing_bytes]


Prepare = Callable[[Incoming], tuple[Admitted, Callable[[], Computable]]]
"""Parses and admits; the function that it returns does the work that depends on the length of texts."""


class Timed:
    """A function, and the seconds that each of its calls took. May be called from any thread."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.seconds: list[float] = []

    def __call__(self, *arguments: Any) -> Any:
        """Call it."""
        started_s = time.monotonic()
        result = self._function(*arguments)
        self.seconds.append(time.monotonic() - started_s)
        return result


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request that waits to be computed, or is being computed."""

    work: Computable
    decoding: Timed
    future: Future[JobResult]
    submitted_s: float
    """When, on the monotonic clock."""
    num_bytes: int
    """Memory that it takes."""


class Servicer:
    """Answers the calls of all services with the loaded models; refuses them while `unavailable` says why."""

    def __init__(
        self, scheduler: Scheduler, metrics: Metrics, limits: Limits, cache: ReplyCache[Model] | None = None
    ) -> None:
        self.models = Models([])
        self.unavailable: str | None = "the server is starting"
        self.num_calls = 0
        """Calls that have come, refused ones included."""
        self.intake = Intake(scheduler, metrics, limits)
        self.offload = CodecPool(CODEC, NUM_THREADS, metrics.waited)
        self.tokenizing = CodecPool(TOKENIZE, 1, metrics.waited, max_size=TOKENIZE_BYTES)
        """For `Tokenize`, a thread of its own: no forecast bounds what waits for it, and no other call is to."""
        self._scheduler = scheduler
        self._metrics = metrics
        self._cache = cache
        self._arrivals = FutureBridge()

    @property
    def is_busy(self) -> bool:
        """Whether a thread reads a request or writes a reply, be it that nobody waits for it any more."""
        return self.offload.is_busy or self.tokenizing.is_busy

    def close(self) -> None:
        """End the threads; again is fine."""
        self.offload.close()
        self.tokenizing.close()

    def route(
        self, service: str, behaviours: Mapping[str, Behaviour], *, always: Collection[str] = ()
    ) -> grpc.GenericRpcHandler:
        """Return the handler that routes the calls of a service here. Requests come as bytes. Anything wrong with them
        or with the server is raised; see `errors.CODES`.

        Args:
            behaviours: by method.
            always: methods that are answered while `unavailable`, too: those that ask about it.
        """
        handlers = {
            method: grpc.unary_unary_rpc_method_handler(self._call(behaviour, method in always))
            for method, behaviour in behaviours.items()
        }
        return grpc.method_handlers_generic_handler(service, handlers)

    def _call(self, behaviour: Behaviour, always: bool) -> Behaviour:
        """The one place where calls are refused while `unavailable`."""

        async def call(raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
            self.num_calls += 1
            if self.unavailable and not always:
                raise UnavailableError(self.unavailable)
            return await behaviour(raw, context)

        return call

    def publish(self, models: Models) -> None:
        """Answer with these from now on."""
        if self._cache is not None and models is not self.models:
            self._cache.clear()
        self.models = models

    async def compute(self, prepare: Prepare, raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """Prepare a request, have it computed within the deadline of the caller, and reply; or reply at once, where the
        cache knows what."""
        incoming = Incoming(raw, deadline_of(context), current_call())
        if self._cache is None:
            return (await self._compute(prepare, incoming))[1].whole
        models, call = self.models, incoming.call
        key = await self.offload.run(call, len(raw), partial(request_key, call.path, raw), small=ADMITTED_BYTES)
        if known := self._cache.get(key):
            note_model(call, known.model, known.num_inputs)
            call.num_tokens, call.from_cache = known.num_tokens, True
            self._metrics.cache_asked(known.model, hit=True)
            return known.reply
        model, reply = await self._compute(prepare, incoming)
        self._metrics.cache_asked(model, hit=False)
        if models is self.models:
            self._metrics.cache_evicted(
                self._cache.put(key, Known(model, call.num_inputs, call.num_tokens, reply.lasting))
            )
        return reply.whole

    async def _compute(self, prepare: Prepare, incoming: Incoming) -> tuple[Model, Reply]:
        call, num_bytes = incoming.call, len(incoming.raw)
        admitted, make = await self.offload.run(call, num_bytes, partial(prepare, incoming), small=ADMITTED_BYTES)
        call.hold(forecast := INPUT_BYTES * call.num_inputs + TOKEN_BYTES * admitted.num_tokens)
        submit = partial(self._submit, incoming, admitted, make)
        submitted = await self.offload.run(call, admitted.size, submit, _cancel_submitted)
        work, submitted_s = submitted.work, submitted.submitted_s
        if (more := submitted.num_bytes - forecast) > 0:
            try:
                call.hold(more)
            except RefusedError:
                submitted.future.cancel()
                raise
        done = await self._arrivals.wait(submitted.future)
        call.stages.append(Stage("queue", submitted_s, done.queue_s))
        call.stages.append(Stage("inference", submitted_s + done.queue_s, done.inference_s))
        replying = Timed(work.reply)
        num_outputs = work.model.num_outputs([len(window) for windows in work.windows for window in windows])
        size = max(num_bytes, num_outputs // OUTPUTS_PER_BYTE)
        reply: Reply = await self.offload.run(call, size, partial(replying, done))
        self._metrics.decoded(work.model, sum(submitted.decoding.seconds) + sum(replying.seconds))
        return work.model, reply

    def _submit(self, incoming: Incoming, admitted: Admitted, make: Callable[[], Computable]) -> Submitted:
        if admitted.size > SMALL_BYTES:  # it had to wait, and others may have filled the queue meanwhile
            self.intake.check(incoming, admitted)
        work = make()
        incoming.call.num_tokens = num_tokens = sum(len(window) for windows in work.windows for window in windows)
        num_inputs, num_windows = len(work.windows), sum(map(len, work.windows))
        num_bytes = INPUT_BYTES * num_inputs + WINDOW_BYTES * (num_windows - num_inputs) + TOKEN_BYTES * num_tokens
        decoding, deadline_s, origin = Timed(work.finish), incoming.deadline_s, incoming.call.origin
        submitted_s = time.monotonic()
        with self.intake.rejections(work.model):
            future = self._scheduler.submit(work.model, work.windows, decoding, deadline_s=deadline_s, origin=origin)
        return Submitted(work, decoding, future, submitted_s, num_bytes)


def _cancel_submitted(found: Future[Submitted]) -> None:
    if not found.cancelled() and not found.exception():
        found.result().future.cancel()


def deadline_of(context: grpc.aio.ServicerContext) -> float | None:
    """When the caller gives up, on the clock of `time.monotonic`."""
    remaining_s = context.time_remaining()
    return None if remaining_s is None else time.monotonic() + remaining_s
