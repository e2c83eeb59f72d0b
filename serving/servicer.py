"""The way of every call: request bytes -> features -> scheduler -> predictions -> reply bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import grpc

from serving.arrivals import Arrivals
from serving.cache import Known, ReplyCache, request_key
from serving.calls import Call, Stage, current_call
from serving.errors import InvalidRequestError, UnavailableError, Violation, abort
from serving.limits import Limits, note_cut
from serving.metrics import REJECTIONS, Metrics
from serving.models import Model, Models
from serving.scheduler import Done, RefusedError, Scheduler
from tasks.base import AnyTask, InvalidExample, InvalidExamplesError
from tasks.features import Features

SMALL_BYTES = 1024
"""What is smaller is handled on the event loop: in well under a millisecond, and without the switch of threads."""
OUTPUTS_PER_BYTE = 4
"""So many numbers of a graph's output take no longer to become a reply than a byte of a request to become features. A
few tokens of a masked language model have hundreds of thousands, of which the reply may hold all."""
ADMITTED_BYTES = 64 * 1024
"""What is smaller is parsed and admitted there: a refusal then does not wait for others' texts to become tokens."""
NUM_THREADS = 2
"""For larger ones, so that one of them does not keep all the others waiting."""
MIN_TOKENS = 3
"""Of any sequence: [CLS], a token, [SEP]."""

Behaviour = Callable[[bytes, Any], Awaitable[bytes]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request that has come."""

    raw: bytes
    deadline_s: float | None
    """On the clock of `time.monotonic`."""
    call: Call
    """What is noted of it."""


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

    def reply(self, done: Done) -> Reply:
        """The reply, serialised."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A serialised message."""

    whole: bytes
    lasting: bytes
    """Without how long it took: what may be sent again to who asks the same."""


Prepare = Callable[[Incoming], Callable[[], Computable]]
"""Parses and admits; what it returns does the work that depends on the length of texts."""


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
    future: Future[Done]


class Servicer:
    """Answers the calls of all services with the loaded models; refuses them while `unavailable` says why."""

    def __init__(
        self, scheduler: Scheduler, metrics: Metrics, limits: Limits, cache: ReplyCache[Model] | None = None
    ) -> None:
        self.models = Models([])
        self.unavailable: str | None = "the server is starting"
        self.num_calls = 0
        """Calls that have come, refused ones included."""
        self._scheduler = scheduler
        self._metrics = metrics
        self.limits = limits
        self._cache = cache
        self._arrivals = Arrivals()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="codec")

    def close(self) -> None:
        """End the threads; again is fine."""
        self._threads.shutdown()

    def route(
        self, service: str, behaviours: Mapping[str, Behaviour], *, always: Collection[str] = ()
    ) -> grpc.GenericRpcHandler:
        """What a server needs to route the calls of a service here. Requests come as bytes: what is wrong in them
        becomes a status.

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
        """The one place where calls are refused, and their errors become statuses."""

        async def call(raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
            self.num_calls += 1
            try:
                if self.unavailable and not always:
                    raise UnavailableError(self.unavailable)
                return await behaviour(raw, context)
            except Exception as error:
                await abort(context, error)

        return call

    def publish(self, models: Models) -> None:
        """Answer with these from now on."""
        if self._cache is not None and models is not self.models:
            self._cache.clear()
        self.models = models

    async def compute(self, prepare: Prepare, raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """Prepare a request, have it computed within the deadline of the caller, and reply; or reply at once, where the
        cache knows what."""
        incoming = Incoming(raw, _deadline(context), current_call())
        if self._cache is None:
            return (await self._compute(prepare, incoming))[1].whole
        models, call = self.models, incoming.call
        key = await self.offload(len(raw), partial(request_key, call.path, raw), small=ADMITTED_BYTES)
        if known := self._cache.get(key):
            _note(call, known.model, known.num_inputs)
            call.num_tokens = known.num_tokens
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
        make = await self.offload(num_bytes, partial(prepare, incoming), small=ADMITTED_BYTES)
        submitted = await self.offload(num_bytes, partial(self._submit, make, incoming), _cancel_submitted)
        work, submitted_s = submitted.work, time.monotonic()
        done = await self._arrivals.wait(submitted.future)
        call.stages.append(Stage("queue", submitted_s, done.queue_s))
        call.stages.append(Stage("inference", submitted_s + done.queue_s, done.inference_s))
        replying = Timed(work.reply)
        num_outputs = work.model.num_outputs([len(window) for windows in work.windows for window in windows])
        size = max(num_bytes, num_outputs // OUTPUTS_PER_BYTE)
        reply: Reply = await self.offload(size, partial(replying, done))
        self._metrics.decoded(work.model, sum(submitted.decoding.seconds) + sum(replying.seconds))
        return work.model, reply

    def _submit(self, make: Callable[[], Computable], incoming: Incoming) -> Submitted:
        work = make()
        incoming.call.num_tokens = sum(len(window) for windows in work.windows for window in windows)
        decoding, deadline_s = Timed(work.finish), incoming.deadline_s
        with self._rejections(work.model):
            future = self._scheduler.submit(work.model, work.windows, decoding, deadline_s=deadline_s)
        return Submitted(work, decoding, future)

    async def offload(
        self,
        size: int,
        function: Callable[[], T],
        undo: Callable[[Future[T]], None] = lambda found: None,
        small: int = SMALL_BYTES,
    ) -> T:
        """Call a function, in a thread where what it works on is not small, so that the event loop never stalls.

        Args:
            size: bytes of a request, or of a request that is as much work.
            undo: is given what the function does after all when the call was cancelled meanwhile.
            small: up to how many bytes it is called at once.
        """
        if size <= small:
            return function()
        found = self._threads.submit(function)
        try:
            return await asyncio.wrap_future(found)
        except asyncio.CancelledError:
            found.add_done_callback(undo)
            raise

    def admit(self, incoming: Incoming, model: Model, num_inputs: int) -> None:
        """Refuse a request before it is looked at further.

        Raises:
            InvalidRequestError: when it has too many inputs.
            RefusedError: when it would not be computed in time.
        """
        _note(incoming.call, model, num_inputs)
        self.limits.check_count(num_inputs)
        num_tokens = max(self._scheduler.forecast.tokens(model, len(incoming.raw)), MIN_TOKENS * num_inputs)
        with self._rejections(model):
            self._scheduler.check(model, num_tokens, incoming.deadline_s)

    def encode(
        self,
        incoming: Incoming,
        model: Model,
        task: AnyTask,
        examples: Sequence[Any],
        *,
        truncate: bool,
        windowed: frozenset[str] = frozenset(),
        field: Callable[[InvalidExample], str],
    ) -> tuple[list[Any], list[list[Features]]]:
        """The examples as they are read, and the features of each.

        Args:
            task: the model's, perhaps with other settings.
            windowed: fields of the examples that may be of any length, since they are read in windows.
            field: path of an invalid example in the request.

        Raises:
            InvalidRequestError: naming the examples that cannot be encoded.
        """
        num_bytes, started_s = len(incoming.raw), time.monotonic()
        try:
            held = examples
            if num_bytes > self.limits.free_bytes(task.settings):
                held = self.limits.cut(examples, task.settings, windowed=windowed, truncate=truncate)
            read = [task.complete(example) for example in held]
            windows = task.encode(read, truncate=truncate)
        except InvalidExamplesError as error:
            raise InvalidRequestError(
                violations=[Violation(field(item), item.reason) for item in error.invalid]
            ) from error
        self.encoded(incoming, model, started_s)
        if held is not examples:
            windows = [note_cut(*parts) for parts in zip(windows, examples, held, strict=True)]
        if num_cut := sum(any(window.num_truncated for window in items) for items in windows):
            self._metrics.truncated(model, num_cut)
        if examples:
            num_tokens = sum(len(window) for items in windows for window in items)
            self._scheduler.forecast.encoded(model, num_bytes, num_tokens)
        return read, windows

    def encoded(self, incoming: Incoming, model: Model, started_s: float) -> float:
        """Note that texts have become tokens; returns the seconds that it took."""
        seconds = time.monotonic() - started_s
        self._metrics.encoded(model, seconds)
        incoming.call.stages.append(Stage("tokenize", started_s, seconds))
        return seconds

    @contextmanager
    def _rejections(self, model: Model) -> Iterator[None]:
        try:
            yield
        except RefusedError as error:
            self._metrics.rejected(model, REJECTIONS[type(error)])
            raise


def _note(call: Call, model: Model, num_inputs: int) -> None:
    call.model, call.num_inputs = f"{model.manifest.name}/{model.manifest.version}", num_inputs


def _cancel_submitted(found: Future[Submitted]) -> None:
    if not found.cancelled() and not found.exception():
        found.result().future.cancel()


def _deadline(context: grpc.aio.ServicerContext) -> float | None:
    remaining_s = context.time_remaining()
    return None if remaining_s is None else time.monotonic() + remaining_s
