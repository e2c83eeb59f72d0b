"""Calls on a server: so many in flight, or so many a second, each timed; light enough to share the server's machine."""

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
"""A call that was due before the end is sent so long after it, no later."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """How calls follow each other: by `concurrency` or `rate`, until `duration_s` or `num_calls`."""

    concurrency: int | None = None
    """Calls in flight: the next begins when one has ended (closed loop)."""
    rate: float | None = None
    """Calls that are due a second, whatever became of those before (open loop)."""
    arrivals: Arrivals = "poisson"
    max_in_flight: int = 1000
    """Of an open loop. A call that is due beyond it waits here, and its wait counts."""
    duration_s: float | None = None
    num_calls: int | None = None
    timeout_s: float = 30.0
    seed: int = 0

    def warm_up(self, seconds: float) -> Load:
        """The same for so long."""
        return replace(self, duration_s=seconds, num_calls=None)


@dataclass
class Samples:
    """What became of calls; arrays hold one number for each answered call, in the order of the replies."""

    latency_s: array[float] = field(default_factory=lambda: array("d"))
    """From when the call was due (open loop) or begun (closed loop) to its reply."""
    service_s: array[float] = field(default_factory=lambda: array("d"))
    """From when it was sent to its reply."""
    tokenize_s: array[float] = field(default_factory=lambda: array("f"))
    """The server's own timings; of replies that carry them."""
    queue_s: array[float] = field(default_factory=lambda: array("f"))
    inference_s: array[float] = field(default_factory=lambda: array("f"))
    rest_s: array[float] = field(default_factory=lambda: array("f"))
    """`service_s` less the server's timings: the network, gRPC at both ends, the wait for a core."""
    num_begun: int = 0
    num_unsent: int = 0
    """About how many calls were due, by the rate, and not sent when the time was over or Ctrl-C came."""
    num_abandoned: int = 0
    """Calls under way when Ctrl-C ended the run."""
    num_texts: int = 0
    num_tokens: int = 0
    num_cut: int = 0
    """Texts of which tokens were cut away."""
    bytes_sent: int = 0
    """By answered calls."""
    bytes_received: int = 0
    last_begun_s: float = 0.0
    """When the last call was begun, since the run was."""
    last_reply_s: float = 0.0
    """When the last reply came."""
    max_late_s: float = 0.0
    """The longest between when a call was due and when it was sent."""
    statuses: Counter[str] = field(default_factory=Counter)
    messages: dict[str, str] = field(default_factory=dict)
    """The first of each status but OK."""
    models: Counter[str] = field(default_factory=Counter)
    """Calls answered by each model and version."""

    @property
    def num_failed(self) -> int:
        """Calls that ended otherwise than with a reply."""
        return self.statuses.total() - self.statuses["OK"]

    def failed(self, status: str, message: str) -> None:
        """Count a call that failed."""
        self.statuses[status] += 1
        self.messages.setdefault(status, " ".join(message.split()))

    def answered(self, payload: Payload, reply: Any, *, num_bytes: int, latency_s: float, service_s: float) -> None:
        """Count a call that was answered."""
        self.statuses["OK"] += 1
        self.latency_s.append(latency_s)
        self.service_s.append(service_s)
        self.bytes_sent += len(payload.body)
        self.num_texts += payload.num_texts
        self.num_tokens += sum(reply.num_tokens)
        self.num_cut += sum(map(bool, reply.num_truncated))
        self.bytes_received += num_bytes
        self.models[f"{reply.model.name}/{reply.model.version}"] += 1
        if reply.HasField("timings"):
            timings = reply.timings
            self.tokenize_s.append(timings.tokenize_s)
            self.queue_s.append(timings.queue_s)
            self.inference_s.append(timings.inference_s)
            self.rest_s.append(service_s - timings.tokenize_s - timings.queue_s - timings.inference_s)


@dataclass
class Usage:
    """What a run took of this process."""

    seconds: float = 0.0
    """Until all of its calls had ended."""
    cpu_s: float = 0.0
    """All of its threads."""
    busy_s: float = 0.0
    """While the event loop did not wait for something to happen."""


class WatchedSelector(selectors.SelectSelector):
    """Knows how long the event loop had nothing to do.

    select() wakes within some 0.1 ms of a time; epoll rounds up to the next millisecond, by which calls of an open loop
    would be late. gRPC reads its sockets itself, so that there are few files to watch.
    """

    idle_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        """Wait, and count the time."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        began = time.perf_counter()
        try:
            return super().select(timeout)
        finally:
            self.idle_s += time.perf_counter() - began


class Loader:
    """Loads a server over open channels.

    Args:
        channels: used in turn.
        selector: of the event loop that runs.
    """

    def __init__(
        self,
        channels: Sequence[grpc.aio.Channel],
        payloads: Payloads,
        metadata: Sequence[tuple[str, str]],
        selector: WatchedSelector,
    ) -> None:
        path, self._reply_class = rpc(payloads.method)
        # Bytes in both directions: nothing is serialised while the clock runs, and a reply is read after it.
        self._methods = cycle([channel.unary_unary(path) for channel in channels])
        self._payloads = cycle(payloads.items)
        self._metadata = tuple(metadata)
        self._selector = selector
        self._started = 0.0
        self.samples = Samples()
        """Of the run that is under way, or was the last."""
        self.usage = Usage()

    @property
    def elapsed_s(self) -> float:
        """Since the run began."""
        return time.perf_counter() - self._started

    async def run(self, load: Load) -> None:
        """Make calls until the load is done and all are answered; cancelling it leaves what was measured until then."""
        self.samples = Samples()
        self._started = time.perf_counter()
        cpu_s, idle_s = time.process_time(), self._selector.idle_s
        try:
            await (self._closed(load) if load.rate is None else self._open(load, load.rate))
        finally:
            seconds = self.elapsed_s
            self.usage = Usage(seconds, time.process_time() - cpu_s, seconds - (self._selector.idle_s - idle_s))

    async def _closed(self, load: Load) -> None:
        turns = self._turns(load)

        async def one_by_one() -> None:
            for _ in turns:
                await self._call(load)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(load.concurrency or 1, load.num_calls or sys.maxsize)):
                group.create_task(one_by_one())

    def _turns(self, load: Load) -> Iterator[int]:
        end = self._end(load)
        for turn in count() if load.num_calls is None else range(load.num_calls):
            if time.perf_counter() >= end:
                return
            yield turn

    async def _open(self, load: Load, rate: float) -> None:
        end, free = self._end(load), asyncio.Semaphore(load.max_in_flight)
        next_due = float("inf")

        async def one(due: float) -> None:
            try:
                await self._call(load, due)
            finally:
                free.release()

        try:
            async with asyncio.TaskGroup() as group:
                for next_due in takewhile(lambda due: due < end, due_times(load, rate, self._started)):
                    await asyncio.sleep(max(0.0, next_due - time.perf_counter()))
                    await free.acquire()
                    if time.perf_counter() >= end + _MAX_LATE_S:
                        return
                    group.create_task(one(next_due))
                next_due = float("inf")
                if load.duration_s is not None:
                    await asyncio.sleep(max(0.0, end - time.perf_counter()))
        finally:
            overdue_s = min(end, time.perf_counter()) - next_due
            overdue = math.ceil(max(0.0, overdue_s) * rate)
            to_come = overdue if load.num_calls is None else load.num_calls - self.samples.num_begun
            self.samples.num_unsent = min(overdue, to_come)

    def _end(self, load: Load) -> float:
        return float("inf") if load.duration_s is None else self._started + load.duration_s

    async def _call(self, load: Load, due: float | None = None) -> None:
        samples, payload, method = self.samples, next(self._payloads), next(self._methods)
        samples.num_begun += 1
        sent = time.perf_counter()
        samples.last_begun_s = sent - self._started
        due = sent if due is None else due
        samples.max_late_s = max(samples.max_late_s, sent - due)
        try:
            raw = await method(payload.body, timeout=load.timeout_s, metadata=self._metadata)
            ended = time.perf_counter()
            reply = self._reply_class.FromString(raw)
        except grpc.aio.AioRpcError as error:
            samples.failed(error.code().name, error.details() or "")
        except DecodeError:
            samples.failed("INTERNAL", f"the reply is no {self._reply_class.DESCRIPTOR.full_name}")
        except asyncio.CancelledError:
            samples.num_abandoned += 1
            raise
        else:
            samples.last_reply_s = ended - self._started
            samples.answered(payload, reply, num_bytes=len(raw), latency_s=ended - due, service_s=ended - sent)


def measured_s(load: Load, samples: Samples, elapsed_s: float) -> float:
    """How long the load lasted, or until the last reply where that came later: calls that fail after it are waited for,
    and take nothing from what was answered.

    Args:
        elapsed_s: when all calls had ended.
    """
    if load.duration_s is not None:
        lasted_s = load.duration_s
    else:
        lasted_s = samples.last_begun_s if samples.num_begun == load.num_calls else elapsed_s
    return max(samples.last_reply_s, min(lasted_s, elapsed_s))


def due_times(load: Load, rate: float, started: float) -> Iterator[float]:
    """When the calls of an open loop are due, the first at once."""
    draw = random.Random(load.seed).expovariate
    gaps = (draw(rate) for _ in count()) if load.arrivals == "poisson" else repeat(1 / rate)
    return islice(accumulate(gaps, initial=started), load.num_calls)
