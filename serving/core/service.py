"""Inference service: the path of every request, the same for all protocols."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from serving.core.cache import CachedReply, ReplyCache
from serving.core.calls import Call, Stage
from serving.core.codec_pool import NUM_THREADS, SMALL_BYTES, CodecPool, FutureBridge
from serving.core.encoding import TextEncoder
from serving.core.endpoint import Endpoint, Inference, Reply, Request
from serving.core.errors import RefusedError, TooLargeError, UnavailableError
from serving.core.job import JobFuture
from serving.core.limits import RequestLimits
from serving.core.metrics import CODEC, TOKENIZE, Metrics
from serving.core.models import Model, Models
from serving.core.scheduler import Scheduler

ADMITTED_BYTES = 64 * 1024
"""Largest request that is parsed and admitted on the event loop, so that refusals do not wait for other requests."""
TOKENIZE_BYTES = 4 * 2**20
"""Maximum bytes of waiting `Tokenize` requests: some ten seconds of work."""
OUTPUTS_PER_BYTE = 64
"""Output values of a graph that take as long to copy into a reply as one byte of a request takes to encode. A few
tokens of a masked language model have hundreds of thousands of outputs, and the reply may hold all of them."""
REPLY_SEQUENCE_BYTES = 4
"""Bytes of a request that take longer to encode than the result of one sequence takes to join a reply. Results are
serialised in the workers."""
MAX_REPLY_BYTES = 128 * 2**20
"""Maximum size of a reply, estimated before its inputs are computed."""
INPUT_BYTES, WINDOW_BYTES, TOKEN_BYTES = 2048, 4096, 16
"""Bytes of memory per input, per further window of an input, and per token, until the request is answered."""


class InferenceService:
    """Answers requests with the loaded models. Refuses them while `unavailable` gives a reason.

    Lives in one event loop; encodes and serialises large requests in threads.
    """

    def __init__(
        self, scheduler: Scheduler, metrics: Metrics, limits: RequestLimits, cache: ReplyCache | None = None
    ) -> None:
        self.models = Models([])
        self.unavailable: str | None = "the server is starting"
        self.problems: Mapping[Model, str] = {}
        """Why the canary of a model fails; empty if it passes."""
        self.limits = limits
        self.encoder = TextEncoder(scheduler, metrics, limits)
        self.codec_pool = CodecPool(CODEC, NUM_THREADS, metrics.waited)
        self.tokenize_pool = CodecPool(TOKENIZE, 1, metrics.waited, max_size=TOKENIZE_BYTES)
        """Separate thread for `Tokenize`: the scheduler does not limit its work, and other calls must not wait."""
        self._scheduler = scheduler
        self._metrics = metrics
        self._cache = cache
        self._futures = FutureBridge()

    @property
    def is_busy(self) -> bool:
        """True while a thread encodes a request or serialises a reply, even if nobody waits for it any more."""
        return self.codec_pool.is_busy or self.tokenize_pool.is_busy

    def close(self) -> None:
        """End the threads. May be called again."""
        self.codec_pool.close()
        self.tokenize_pool.close()

    def publish(self, models: Models) -> None:
        """Replace the models that answer requests, and empty the cache."""
        if self._cache is not None and models is not self.models:
            self._cache.clear()
        self.models = models

    def begin_call(self, *, always: bool = False) -> None:
        """Refuse a call while the server is unavailable.

        Args:
            always: True for methods that report the state of the server, and are therefore always answered.

        Raises:
            UnavailableError: when the server is starting or draining.
        """
        if self.unavailable and not always:
            raise UnavailableError(self.unavailable)

    async def infer(self, endpoint: Endpoint, request: Request, call: Call) -> bytes:
        """Answer a request; return the serialised reply.

        Small requests are parsed and encoded on the event loop, others in the codec threads. Admission is checked when
        a request is parsed, and again if it had to wait for a thread; the scheduler checks the exact number of tokens.

        Args:
            endpoint: operation that the request is for.
            request: request as its front has received it.
            call: record of the call; model, sizes and stages are filled in.

        Raises:
            ServingError: when the request is invalid, refused or expired, or the model fails.
        """
        run, models, num_bytes, key = self.codec_pool.run, self.models, request.num_bytes, b""
        if self._cache is not None:
            key = await run(call, num_bytes, lambda: call.path.encode() + request.digest(), small=ADMITTED_BYTES)
            if cached := self._cache.get(key):
                record_model(call, cached.model, cached.num_inputs)
                call.num_tokens, call.from_cache = cached.num_tokens, True
                self._metrics.cache_looked_up(cached.model, hit=True)
                return cached.data

        def admit(model: Model, num_tokens: int, *, best_effort: bool) -> None:
            deadline_s = call.deadline_for(best_effort=best_effort)
            self._scheduler.check(model, num_tokens, deadline_s, best_effort=best_effort, origin=call.origin)

        def parse_and_admit() -> tuple[Inference, int, int]:
            message = request.parse(self.limits.for_parsing(call.check))
            model = endpoint.find_model(self.models, message)
            num_inputs = endpoint.num_inputs(message)
            record_model(call, model, num_inputs)
            self.limits.check_count(num_inputs)
            max_tokens = endpoint.max_tokens(message, model)
            read_bytes = endpoint.read_bytes(message, num_bytes)
            estimate = self._scheduler.latency_model.estimate_tokens(model, read_bytes, num_inputs)
            num_tokens, best_effort = int(min(estimate, max_tokens)), endpoint.is_best_effort(message)
            admit(model, num_tokens, best_effort=best_effort)
            inference = endpoint.prepare(message, model, self.limits)
            inference.best_effort = best_effort
            return inference, num_tokens, max(num_bytes, endpoint.encode_cost_bytes(message, num_bytes))

        inference, num_tokens, cost_bytes = await run(call, num_bytes, parse_and_admit, small=ADMITTED_BYTES)
        model, decode, serialize = inference.model, _Timed(inference.decode), _Timed(inference.reply)
        reserved_bytes = INPUT_BYTES * call.num_inputs + TOKEN_BYTES * num_tokens
        call.reserve_memory(reserved_bytes)

        ends_s = call.deadline_for(best_effort=inference.best_effort)

        def encode_and_submit() -> tuple[float, JobFuture]:
            if cost_bytes > SMALL_BYTES:  # it waited for a thread, and others may have filled the queue since
                admit(model, num_tokens, best_effort=inference.best_effort)
            inference.encode(self.encoder, call, num_bytes)
            call.num_tokens = sum(inference.lengths)
            if (reply_bytes := call.reply_factor * inference.reply_bytes) > MAX_REPLY_BYTES:
                raise TooLargeError(
                    f"the reply would have up to {reply_bytes / 2**20:.0f} MiB (maximum {MAX_REPLY_BYTES // 2**20} "
                    "MiB); send fewer inputs per call"
                )
            submitted_s, groups = time.monotonic(), inference.windows
            future = self._scheduler.submit(
                model, groups, decode, deadline_s=ends_s, best_effort=inference.best_effort, origin=call.origin
            )
            return submitted_s, future

        submitted_s, future = await run(call, cost_bytes, encode_and_submit, _cancel_submitted)
        lengths, num_inputs = inference.lengths, len(inference.windows)
        needed_bytes = INPUT_BYTES * num_inputs + WINDOW_BYTES * (len(lengths) - num_inputs)
        needed_bytes += TOKEN_BYTES * call.num_tokens + call.reply_factor * inference.reply_bytes
        if needed_bytes > reserved_bytes:
            try:
                call.reserve_memory(needed_bytes - reserved_bytes)
            except RefusedError:
                future.cancel()
                raise

        timer = None
        if inference.best_effort and ends_s is not None:
            timer = asyncio.get_running_loop().call_later(ends_s - time.monotonic(), lambda: future.end_early(ends_s))
        try:
            done = await self._futures.wait(future)
        finally:
            if timer:
                timer.cancel()
        call.stages.append(Stage("queue", submitted_s, done.queue_s))
        call.stages.append(Stage("inference", submitted_s + done.queue_s, done.inference_s))

        reply_cost_bytes = max(REPLY_SEQUENCE_BYTES * len(lengths), model.num_outputs(lengths) // OUTPUTS_PER_BYTE)
        reply: Reply = await run(call, reply_cost_bytes, lambda: serialize(done))
        self._metrics.decoded(model, sum(decode.seconds) + sum(serialize.seconds))
        if self._cache is not None:
            self._metrics.cache_looked_up(model, hit=False)
            if models is self.models and not inference.best_effort:  # else another version may answer the same request
                cached = CachedReply(model, call.num_inputs, call.num_tokens, reply.without_timings)
                self._metrics.cache_evicted(self._cache.put(key, cached))
        return reply.data


class _Timed:
    """Function that records the seconds of each call. May be called from any thread."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.seconds: list[float] = []

    def __call__(self, *arguments: Any) -> Any:
        started_s = time.monotonic()
        result = self._function(*arguments)
        self.seconds.append(time.monotonic() - started_s)
        return result


def record_model(call: Call, model: Model, num_inputs: int) -> None:
    """Record the model and the number of inputs of a call."""
    call.model, call.num_inputs = f"{model.manifest.name}/{model.manifest.version}", num_inputs
    call.space = model.manifest.space


def _cancel_submitted(result: Future[tuple[float, JobFuture]]) -> None:
    if not result.cancelled() and not result.exception():
        result.result()[1].cancel()
