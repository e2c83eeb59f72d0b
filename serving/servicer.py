"""The Encoder service: request bytes -> features -> scheduler -> predictions -> reply bytes, each call counted once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import grpc

from bertline.v1 import encoder_pb2 as pb
from serving.arrivals import Arrivals
from serving.catalog import describe, reference, tokenize
from serving.errors import InvalidRequestError, UnavailableError, Violation, status_of
from serving.metrics import REJECTIONS, Metrics
from serving.models import Model, Models
from serving.rpcs import RPCS, Rpc
from serving.scheduler import RefusedError, Scheduler
from serving.wire import parse
from serving.work import Work
from tasks.base import InvalidExamplesError

SERVICE = pb.DESCRIPTOR.services_by_name["Encoder"].full_name
METHODS = tuple(method.name for method in pb.DESCRIPTOR.services_by_name["Encoder"].methods)

SMALL_BYTES = 1024
"""What is smaller is handled on the event loop: in well under a millisecond, and without the switch of threads."""
NUM_THREADS = 2
"""For larger ones, so that one of them does not keep all the others waiting."""
MIN_TOKENS = 3
"""Of any sequence: [CLS], a token, [SEP]."""

Behaviour = Callable[[bytes, Any], Awaitable[bytes]]
T = TypeVar("T")


class Servicer:
    """Answers calls with the loaded models; refuses them while `unavailable` says why."""

    def __init__(self, scheduler: Scheduler, metrics: Metrics) -> None:
        self.models = Models([])
        self.unavailable: str | None = "the server is starting"
        self.num_calls = 0
        """Calls that have come, refused ones included."""
        self._scheduler = scheduler
        self._metrics = metrics
        self._arrivals = Arrivals()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="codec")

    def handlers(self) -> grpc.GenericRpcHandler:
        """What a server needs to route calls here. Requests come as bytes: what is wrong in them becomes a status."""
        behaviours: dict[str, Behaviour] = {rpc.name: partial(self._compute, rpc) for rpc in RPCS}
        behaviours |= {"Tokenize": self._tokenize, "ListModels": self._list_models, "GetModel": self._get_model}
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                method: grpc.unary_unary_rpc_method_handler(self._call(method, behaviour))
                for method, behaviour in behaviours.items()
            },
        )

    def close(self) -> None:
        """End the threads; again is fine."""
        self._threads.shutdown()

    def _call(self, method: str, behaviour: Behaviour) -> Callable[[bytes, grpc.aio.ServicerContext], Awaitable[bytes]]:
        """The one place where calls are counted, refused, and their errors become statuses."""

        async def call(raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
            self.num_calls += 1
            with self._metrics.rpc(method) as outcome:
                try:
                    if self.unavailable:
                        raise UnavailableError(self.unavailable)
                    return await behaviour(raw, context)
                except asyncio.CancelledError:
                    outcome.code = _code_of_cancellation(context)
                    raise
                except Exception as error:
                    status = status_of(error)
                    outcome.code = status.code
            return await context.abort_with_status(status)

        return call

    async def _compute(self, rpc: Rpc, raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
        deadline_s = _deadline(context)
        work = await self._offload(len(raw), partial(self._prepare, rpc, raw, deadline_s))
        with self._rejections(work.model):
            future = self._scheduler.submit(work.model, work.windows, work.finish, deadline_s=deadline_s)
        done = await self._arrivals.wait(future)
        return await self._offload(len(raw), partial(work.reply, done))

    async def _offload(self, size: int, function: Callable[[], T]) -> T:
        """Call a function, in a thread where the request is not small, so that the event loop never stalls."""
        if size <= SMALL_BYTES:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def _prepare(self, rpc: Rpc, raw: bytes, deadline_s: float | None) -> Work:
        request: Any = parse(rpc.request_type, raw)
        model = self.models.find(request.model.name, request.model.version, rpc.task)
        task = rpc.specialise(model, request)
        forecast, num_inputs = self._scheduler.forecast, len(getattr(request, rpc.inputs))
        with self._rejections(model):
            self._scheduler.check(model, max(forecast.tokens(model, len(raw)), MIN_TOKENS * num_inputs), deadline_s)
        started = time.perf_counter()
        examples = rpc.examples(request, task)
        try:
            windows = task.encode(examples, truncate=request.truncate)
        except InvalidExamplesError as error:
            violations = [Violation(rpc.field(item, request), item.reason) for item in error.invalid]
            raise InvalidRequestError(violations=violations) from error
        if examples:
            forecast.encoded(model, len(raw), sum(len(item) for items in windows for item in items))
        tokenize_s = time.perf_counter() - started
        self._metrics.encoded(model, tokenize_s)
        return Work(rpc, request, model, task, examples, windows, tokenize_s)

    @contextmanager
    def _rejections(self, model: Model) -> Iterator[None]:
        try:
            yield
        except RefusedError as error:
            self._metrics.rejected(model, REJECTIONS[type(error)])
            raise

    async def _tokenize(self, raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return await self._offload(len(raw), partial(self._tokens, raw))

    def _tokens(self, raw: bytes) -> bytes:
        request = parse(pb.TokenizeRequest, raw)
        model = self.models.find(request.model.name, request.model.version)
        started = time.perf_counter()
        results = tokenize(model.task.tokenizer, request.inputs)
        tokenize_s = time.perf_counter() - started
        self._metrics.encoded(model, tokenize_s)
        return pb.TokenizeReply(
            model=reference(model),
            results=results,
            num_tokens=[len(item.ids) for item in results],
            timings=pb.Timings(tokenize_s=tokenize_s),
        ).SerializeToString()

    async def _list_models(self, raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
        parse(pb.ListModelsRequest, raw)
        return pb.ListModelsReply(models=[describe(item) for item in self.models.versions]).SerializeToString()

    async def _get_model(self, raw: bytes, context: grpc.aio.ServicerContext) -> bytes:
        request = parse(pb.GetModelRequest, raw)
        model = self.models.find(request.model.name, request.model.version)
        return next(describe(item) for item in self.models.versions if item.model is model).SerializeToString()


def _deadline(context: grpc.aio.ServicerContext) -> float | None:
    remaining_s = context.time_remaining()
    return None if remaining_s is None else time.monotonic() + remaining_s


def _code_of_cancellation(context: grpc.aio.ServicerContext) -> grpc.StatusCode:
    remaining_s = context.time_remaining()
    expired = remaining_s is not None and remaining_s <= 0
    return grpc.StatusCode.DEADLINE_EXCEEDED if expired else grpc.StatusCode.CANCELLED
