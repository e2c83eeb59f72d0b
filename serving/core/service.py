"""Inference service: the path of every request, the same for all protocols."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from serving.core.admission import Admission
from serving.core.cache import CachedReply, ReplyCache, request_key
from serving.core.calls import Call, Stage
from serving.core.codec_pool import NUM_THREADS, SMALL_BYTES, CodecPool
from serving.core.encoding import TextEncoder
from serving.core.endpoint import Endpoint, Inference, Reply
from serving.core.errors import RefusedError, TooLargeError, UnavailableError
from serving.core.future_bridge import FutureBridge
from serving.core.limits import RequestLimits
from serving.core.metrics import CODEC, TOKENIZE, Metrics
from serving.core.models import Model, Models
from serving.core.request import PendingRequest
from serving.core.scheduler import JobResult, Scheduler

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


@dataclass(frozen=True, slots=True)
class _Admitted:
    """Parsed and admitted request, not yet encoded."""

    inference: Inference
    num_tokens: int
    """Estimated tokens."""
    encode_cost_bytes: int
    """Cost of encoding, in bytes of plain text: `Endpoint.encode_cost_bytes`, at least the size of the request."""


@dataclass(frozen=True, slots=True)
class _Submitted:
    """Request whose sequences are in the scheduler."""

    inference: Inference
    future: Future[JobResult]
    decode: _Timed
    submitted_s: float
    """Time of submission, on the clock of `time.monotonic`."""
    num_bytes: int
    """Estimated bytes of memory until the request is answered."""


class InferenceService:
    """Answers requests with the loaded models. Refuses them while `unavailable` gives a reason.

    Lives in one event loop; encodes and serialises large requests in threads.
    """

    def __init__(
        self, scheduler: Scheduler, metrics: Metrics, limits: RequestLimits, cache: ReplyCache[Model] | None = None
    ) -> None:
        self.models = Models([])
        self.unavailable: str | None = "the server is starting"
        self.num_calls = 0
        """Calls so far, including refused ones."""
        self.limits = limits
        self.admission = Admission(scheduler, metrics)
        self.encoder = TextEncoder(self.admission, scheduler.latency_model, metrics, limits)
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
        """Count a call, and refuse it while the server is unavailable.

        Args:
            always: True for methods that report the state of the server, and are therefore always answered.

        Raises:
            UnavailableError: when the server is starting or draining.
        """
        self.num_calls += 1
        if self.unavailable and not always:
            raise UnavailableError(self.unavailable)

    async def infer(self, endpoint: Endpoint, data: bytes, deadline_s: float | None, call: Call) -> Reply:
        """Answer a request.

        Small requests are parsed and encoded on the event loop, others in the codec threads. Admission is checked when
        a request is parsed, and again if it had to wait for a thread; the scheduler checks the exact number of tokens.

        Args:
            endpoint: operation that the request is for.
            data: serialised request.
            deadline_s: deadline in seconds on the clock of `time.monotonic`; None for a call without one.
            call: record of the call; model, sizes and stages are filled in.

        Raises:
            ServingError: when the request is invalid, refused or expired, or the model fails.
        """
        request, models, key = PendingRequest(data, deadline_s, call), self.models, b""
        if self._cache is not None:
            key = await self.codec_pool.run(
                call, len(data), partial(request_key, call.path, data), small=ADMITTED_BYTES
            )
            if cached := self._cache.get(key):
                return self._cached_reply(cached, call)

        parse_and_admit = partial(self._parse_and_admit, endpoint, request)
        admitted = await self.codec_pool.run(call, len(data), parse_and_admit, small=ADMITTED_BYTES)
        reserved_bytes = INPUT_BYTES * call.num_inputs + TOKEN_BYTES * admitted.num_tokens
        call.reserve_memory(reserved_bytes)

        encode_and_submit = partial(self._encode_and_submit, request, admitted)
        submitted = await self.codec_pool.run(call, admitted.encode_cost_bytes, encode_and_submit, _cancel_submitted)
        _reserve_more(call, submitted, reserved_bytes)

        done = await self._futures.wait(submitted.future)
        call.stages.append(Stage("queue", submitted.submitted_s, done.queue_s))
        call.stages.append(Stage("inference", submitted.submitted_s + done.queue_s, done.inference_s))

        serialize, model = _Timed(submitted.inference.reply), submitted.inference.model
        reply: Reply = await self.codec_pool.run(call, _reply_size(submitted), partial(serialize, done))
        self._metrics.decoded(model, sum(submitted.decode.seconds) + sum(serialize.seconds))
        if self._cache is not None:
            self._metrics.cache_looked_up(model, hit=False)
            if models is self.models:  # else another version may answer the same request now
                cached = CachedReply(model, call.num_inputs, call.num_tokens, reply.without_timings)
                self._metrics.cache_evicted(self._cache.put(key, cached))
        return reply

    def _cached_reply(self, cached: CachedReply[Model], call: Call) -> Reply:
        record_model(call, cached.model, cached.num_inputs)
        call.num_tokens, call.from_cache = cached.num_tokens, True
        self._metrics.cache_looked_up(cached.model, hit=True)
        return Reply(cached.data)

    def _parse_and_admit(self, endpoint: Endpoint, request: PendingRequest) -> _Admitted:
        message = endpoint.parse(request.data, self.limits.for_parsing(request.check))
        model = endpoint.find_model(self.models, message)
        num_inputs, num_bytes = endpoint.num_inputs(message), len(request.data)
        record_model(request.call, model, num_inputs)
        self.limits.check_count(num_inputs)
        max_tokens = endpoint.max_tokens(message, model)
        read_bytes = endpoint.read_bytes(message, num_bytes)
        num_tokens = self.admission.estimate_tokens(model, read_bytes, num_inputs, max_tokens)
        self.admission.admit(request, model, num_tokens)
        inference = endpoint.prepare(message, model, self.limits)
        return _Admitted(inference, num_tokens, max(num_bytes, endpoint.encode_cost_bytes(message, num_bytes)))

    def _encode_and_submit(self, request: PendingRequest, admitted: _Admitted) -> _Submitted:
        inference, model = admitted.inference, admitted.inference.model
        if (
            admitted.encode_cost_bytes > SMALL_BYTES
        ):  # it waited for a thread, and others may have filled the queue since
            self.admission.admit(request, model, admitted.num_tokens)
        inference.encode(self.encoder, request)
        windows = inference.windows
        request.call.num_tokens = num_tokens = sum(len(window) for items in windows for window in items)
        num_more_windows = sum(map(len, windows)) - len(windows)
        num_bytes = INPUT_BYTES * len(windows) + WINDOW_BYTES * num_more_windows + TOKEN_BYTES * num_tokens
        reply_bytes = request.call.reply_factor * inference.reply_bytes
        if reply_bytes > MAX_REPLY_BYTES:
            raise TooLargeError(
                f"the reply would have up to {reply_bytes / 2**20:.0f} MiB (maximum {MAX_REPLY_BYTES // 2**20} MiB); "
                "send fewer inputs per call"
            )
        num_bytes += reply_bytes
        decode, submitted_s, origin = _Timed(inference.decode), time.monotonic(), request.call.origin
        with self.admission.count_rejections(model):
            future = self._scheduler.submit(model, windows, decode, deadline_s=request.deadline_s, origin=origin)
        return _Submitted(inference, future, decode, submitted_s, num_bytes)


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


def _reserve_more(call: Call, submitted: _Submitted, reserved_bytes: int) -> None:
    """Reserve the memory that a request needs beyond the estimate. Cancel the request if there is no room."""
    if (num_more := submitted.num_bytes - reserved_bytes) > 0:
        try:
            call.reserve_memory(num_more)
        except RefusedError:
            submitted.future.cancel()
            raise


def _reply_size(submitted: _Submitted) -> int:
    """Return the size of a request that takes as long to encode as this reply takes to serialise."""
    inference = submitted.inference
    lengths = [len(window) for items in inference.windows for window in items]
    return max(REPLY_SEQUENCE_BYTES * len(lengths), inference.model.num_outputs(lengths) // OUTPUTS_PER_BYTE)


def _cancel_submitted(result: Future[_Submitted]) -> None:
    if not result.cancelled() and not result.exception():
        result.result().future.cancel()
