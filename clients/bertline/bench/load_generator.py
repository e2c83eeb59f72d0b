"""Load generator: sends calls by concurrency or at a rate and times them. Light enough to run beside the server."""

from __future__ import annotations

import asyncio
import math
import random
import selectors
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count, cycle, islice, repeat, takewhile
from typing import Any, Literal

import grpc.aio
from google.protobuf.message import DecodeError

from bertline.bench.inputs import Payload, Payloads, rpc

Arrivals = Literal["poisson", "constant"]
_MAX_LATE_S = 0.1
"""Time after the end of a run in which overdue calls are still sent, in seconds."""


@dataclass(frozen=True, kw_only=True)
class LoadProfile:
    """Schedule of calls: by `concurrency` or at a `rate`, until `duration_s` or `num_calls`."""

    concurrency: int | None = None
    """Calls in flight: the next one starts when one has ended (closed loop)."""
    rate: float | None = None
    """Calls that are due per second, even if earlier ones have not ended (open loop)."""
    arrivals: Arrivals = "poisson"
    max_in_flight: int = 1000
    """Maximum number of calls in flight in an open loop. Later calls wait in the client, and their wait counts."""
    duration_s: float | None = None
    num_calls: int | None = None
    timeout_s: float = 30.0
    seed: int = 0

    def warm_up(self, seconds: float) -> LoadProfile:
        """Return the same profile for another duration."""
        return replace(self, duration_s=seconds, num_calls=None)


@dataclass
class CallResults:
    """Results of the calls of a run. Arrays hold one number per answered call, in the order of the replies."""

    latency_s: array[float] = field(default_factory=lambda: array("d"))
    """Seconds from when the call was due (open loop) or sent (closed loop) to its reply."""
    service_s: array[float] = field(default_factory=lambda: array("d"))
    """Seconds from sending to the reply."""
    tokenize_s: array[float] = field(default_factory=lambda: array("f"))
    """Server timings of the replies that carry them."""
    queue_s: array[float] = field(default_factory=lambda: array("f"))
    inference_s: array[float] = field(default_factory=lambda: array("f"))
    rest_s: array[float] = field(default_factory=lambda: array("f"))
    """`service_s` minus the server's timings: network, gRPC at both ends, wait for a core."""
    num_begun: int = 0
    num_unsent: int = 0
    """Estimated number of calls that were due, but not sent before the run ended."""
    num_abandoned: int = 0
    """Calls in flight when Ctrl-C ended the run."""
    num_texts: int = 0
    num_tokens: int = 0
    num_truncated: int = 0
    """Texts that were truncated."""
    bytes_sent: int = 0
    """Bytes of the requests of answered calls."""
    bytes_received: int = 0
    last_begun_s: float = 0.0
    """Time of the last call, in seconds since the start of the run."""
    last_reply_s: float = 0.0
    """Time of the last reply, in seconds since the start of the run."""
    max_late_s: float = 0.0
    """Longest delay from when a call was due to when it was sent."""
    statuses: Counter[str] = field(default_factory=Counter)
    messages: dict[str, str] = field(default_factory=dict)
    """First message of each status except OK."""
    models: Counter[str] = field(default_factory=Counter)
    """Answered calls by model and version."""

    @property
    def num_failed(self) -> int:
        """Number of calls that failed."""
        return self.statuses.total() - self.statuses["OK"]

    def add_failure(self, status: str, message: str) -> None:
        """Count a call that failed."""
        self.statuses[status] += 1
        self.messages.setdefault(status, " ".join(message.split()))

    def add_reply(self, payload: Payload, reply: Any, *, num_bytes: int, latency_s: float, service_s: float) -> None:
        """Count a call that was answered."""
        self.statuses["OK"] += 1
        self.latency_s.append(latency_s)
        self.service_s.append(service_s)
        self.bytes_sent += len(payload.body)
        self.num_texts += payload.num_texts
        self.num_tokens += sum(reply.num_tokens)
        self.num_truncated += sum(map(bool, reply.num_truncated))
        self.bytes_received += num_bytes
        self.models[f"{reply.model.name}/{reply.model.version}"] += 1
        if reply.HasField("timings"):
            timings = reply.timings
            self.tokenize_s.append(timings.tokenize_s)
            self.queue_s.append(timings.queue_s)
            self.inference_s.append(timings.inference_s)
            self.rest_s.append(service_s - timings.tokenize_s - timings.queue_s - timings.inference_s)


@dataclass
class ProcessUsage:
    """Resources of this process that a run used."""

    seconds: float = 0.0
    """Seconds until all calls had ended."""
    cpu_s: float = 0.0
    """CPU time of all threads."""
    busy_s: float = 0.0
    """Seconds in which the event loop was busy."""


class IdleTimeSelector(selectors.SelectSelector):
    """Selector that measures how long the event loop is idle.

    select() wakes up about 0.1 ms late. epoll rounds up to the next millisecond, which would delay calls of an open
    loop. gRPC reads its sockets itself, so there are few files to select from.
    """

    idle_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        """Wait for events, and count the time."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        began = time.perf_counter()
        try:
            return super().select(timeout)
        finally:
            self.idle_s += time.perf_counter() - began


class LoadGenerator:
    """Generator of load on a server.

    Args:
        channels: open channels, used in turn.
        payloads: calls to send in turn.
        metadata: metadata of every call.
        selector: selector of the running event loop.
    """

    def __init__(
        self,
        channels: Sequence[grpc.aio.Channel],
        payloads: Payloads,
        metadata: Sequence[tuple[str, str]],
        selector: IdleTimeSelector,
    ) -> None:
        path, self._reply_class = rpc(payloads.method)
        # Bytes in both directions: serialising and parsing are not timed.
        self._methods = cycle([channel.unary_unary(path) for channel in channels])
        self._payloads = cycle(payloads.items)
        self._metadata = tuple(metadata)
        self._selector = selector
        self._started = 0.0
        self.results = CallResults()
        """Results of the current or last run."""
        self.usage = ProcessUsage()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of the run."""
        return time.perf_counter() - self._started

    async def run(self, profile: LoadProfile) -> None:
        """Send calls until the profile is complete and all have ended. If cancelled, the results until then remain."""
        self.results = CallResults()
        self._started = time.perf_counter()
        cpu_s, idle_s = time.process_time(), self._selector.idle_s
        try:
            await (
                self._run_closed_loop(profile) if profile.rate is None else self._run_open_loop(profile, profile.rate)
            )
        finally:
            seconds = self.elapsed_s
            self.usage = ProcessUsage(seconds, time.process_time() - cpu_s, seconds - (self._selector.idle_s - idle_s))

    async def _run_closed_loop(self, profile: LoadProfile) -> None:
        turns = self._turns(profile)

        async def call_in_turn() -> None:
            for _ in turns:
                await self._call(profile)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(profile.concurrency or 1, profile.num_calls or sys.maxsize)):
                group.create_task(call_in_turn())

    def _turns(self, profile: LoadProfile) -> Iterator[int]:
        end = self._end(profile)
        for turn in count() if profile.num_calls is None else range(profile.num_calls):
            if time.perf_counter() >= end:
                return
            yield turn

    async def _run_open_loop(self, profile: LoadProfile, rate: float) -> None:
        end, free = self._end(profile), asyncio.Semaphore(profile.max_in_flight)
        next_due = float("inf")

        async def call_and_release(due: float) -> None:
            try:
                await self._call(profile, due)
            finally:
                free.release()

        try:
            async with asyncio.TaskGroup() as group:
                for next_due in takewhile(lambda due: due < end, due_times(profile, rate, self._started)):
                    await asyncio.sleep(max(0.0, next_due - time.perf_counter()))
                    await free.acquire()
                    if time.perf_counter() >= end + _MAX_LATE_S:
                        return
                    group.create_task(call_and_release(next_due))
                next_due = float("inf")
                if profile.duration_s is not None:
                    await asyncio.sleep(max(0.0, end - time.perf_counter()))
        finally:
            overdue_s = min(end, time.perf_counter()) - next_due
            overdue = math.ceil(max(0.0, overdue_s) * rate)
            to_come = overdue if profile.num_calls is None else profile.num_calls - self.results.num_begun
            self.results.num_unsent = min(overdue, to_come)

    def _end(self, profile: LoadProfile) -> float:
        return float("inf") if profile.duration_s is None else self._started + profile.duration_s

    async def _call(self, profile: LoadProfile, due: float | None = None) -> None:
        results, payload, method = self.results, next(self._payloads), next(self._methods)
        results.num_begun += 1
        sent = time.perf_counter()
        results.last_begun_s = sent - self._started
        due = sent if due is None else due
        results.max_late_s = max(results.max_late_s, sent - due)
        try:
            raw = await method(payload.body, timeout=profile.timeout_s, metadata=self._metadata)
            ended = time.perf_counter()
            reply = self._reply_class.FromString(raw)
        except grpc.aio.AioRpcError as error:
            results.add_failure(error.code().name, error.details() or "")
        except DecodeError:
            results.add_failure("INTERNAL", f"the reply is not a valid `{self._reply_class.DESCRIPTOR.full_name}`")
        except asyncio.CancelledError:
            results.num_abandoned += 1
            raise
        else:
            results.last_reply_s = ended - self._started
            results.add_reply(payload, reply, num_bytes=len(raw), latency_s=ended - due, service_s=ended - sent)


def measured_s(profile: LoadProfile, results: CallResults, elapsed_s: float) -> float:
    """Return the duration of a run: until the end of its profile, or until the last reply if that came later.

    Calls that fail after that do not extend it.

    Args:
        profile: profile of the run.
        results: results of the run.
        elapsed_s: seconds until all calls had ended.
    """
    if profile.duration_s is not None:
        lasted_s = profile.duration_s
    else:
        lasted_s = results.last_begun_s if results.num_begun == profile.num_calls else elapsed_s
    return max(results.last_reply_s, min(lasted_s, elapsed_s))


def due_times(profile: LoadProfile, rate: float, started: float) -> Iterator[float]:
    """Yield the times at which the calls of an open loop are due; the first one is due immediately."""
    draw = random.Random(profile.seed).expovariate
    gaps = (draw(rate) for _ in count()) if profile.arrivals == "poisson" else repeat(1 / rate)
    return islice(accumulate(gaps, initial=started), profile.num_calls)
