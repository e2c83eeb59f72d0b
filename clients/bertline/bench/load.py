"""Load on a server: calls in flight (closed loop), or calls due per second (open loop), and what they measure."""

from __future__ import annotations

import asyncio
import math
import random
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count, cycle, islice, repeat, takewhile
from typing import Any, Literal

import grpc.aio
from google.protobuf.message import DecodeError

Arrivals = Literal["poisson", "constant"]
_MAX_LATE_S = 0.1
"""Time after the end of a run in which overdue calls are still sent, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """Schedule of the calls of a run: by `concurrency` or at a `rate`, until `duration_s` or `num_calls`."""

    concurrency: int = 8
    """Calls in flight: the next one starts when one has ended (closed loop)."""
    rate: float | None = None
    """Calls that are due per second, even if earlier ones have not ended (open loop). Replaces `concurrency`."""
    arrivals: Arrivals = "poisson"
    """Gaps between calls with `rate`: random, as of many independent callers, or even."""
    max_in_flight: int = 1000
    """Maximum number of calls in flight with `rate`. Later calls wait in the client, and their wait counts."""
    duration_s: float | None = 10.0
    num_calls: int | None = None
    timeout_s: float = 30.0

    def due_times(self, started: float) -> Iterator[float]:
        """Yield the times at which the calls of an open loop are due, the same in each run; the first one at once."""
        assert self.rate
        draw = random.Random(0).expovariate
        gaps = (draw(self.rate) for _ in count()) if self.arrivals == "poisson" else repeat(1 / self.rate)
        return islice(accumulate(gaps, initial=started), self.num_calls)


@dataclass
class Measurements:
    """Measurements of a run. Arrays hold one number per answered call."""

    latency_s: array[float] = field(default_factory=lambda: array("d"))
    """Seconds from when a call was due (open loop) or sent (closed loop) to its reply."""
    queue_s: array[float] = field(default_factory=lambda: array("f"))
    """Server timings of the replies that carry them."""
    inference_s: array[float] = field(default_factory=lambda: array("f"))
    num_sent: int = 0
    num_unsent: int = 0
    """Estimated number of calls that were due, but not sent before the run ended."""
    num_tokens: int = 0
    num_truncated: int = 0
    """Texts that were truncated."""
    statuses: Counter[str] = field(default_factory=Counter)
    """Calls by gRPC status."""
    messages: dict[str, str] = field(default_factory=dict)
    """First message of each status except OK."""
    models: Counter[str] = field(default_factory=Counter)
    """Answered calls by model and version."""
    last_sent_s: float = 0.0
    """Time of the last call, in seconds since the start of the run, as is that of the last reply."""
    last_reply_s: float = 0.0
    max_late_s: float = 0.0
    """Longest delay from when a call was due to when it was sent."""
    elapsed_s: float = 0.0
    """Seconds until all calls had ended."""
    busy: float = 0.0
    """Fraction of the time in which the client's event loop computed."""

    def seconds(self, load: Load) -> float:
        """Return the duration of the run: until the end of its load, or until the last reply if that came later.

        Calls that fail after that do not extend it.
        """
        ended_s = self.elapsed_s if load.duration_s is None else load.duration_s
        if load.duration_s is None and self.num_sent == load.num_calls:
            ended_s = self.last_sent_s
        return max(self.last_reply_s, min(ended_s, self.elapsed_s))

    def add_failure(self, status: str, message: str) -> None:
        """Count a call that failed."""
        self.statuses[status] += 1
        self.messages.setdefault(status, " ".join(message.split()))

    def add_reply(self, reply: Any, latency_s: float) -> None:
        """Count a call that was answered."""
        self.statuses["OK"] += 1
        self.latency_s.append(latency_s)
        self.num_tokens += sum(reply.num_tokens)
        self.num_truncated += sum(map(bool, reply.num_truncated))
        self.models[f"{reply.model.name}/{reply.model.version}"] += 1
        if reply.HasField("timings"):
            self.queue_s.append(reply.timings.queue_s)
            self.inference_s.append(reply.timings.inference_s)


class LoadGenerator:
    """Generator of load on a server.

    Args:
        rpc: sends a serialised request. Bytes in both directions: serialising and parsing are not timed.
        reply_class: class of the reply.
        bodies: serialised requests, sent one after the other, and then from the first again.
        metadata: metadata of every call.
    """

    def __init__(
        self,
        rpc: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes],
        reply_class: Any,
        bodies: Sequence[bytes],
        metadata: Sequence[tuple[str, str]],
    ) -> None:
        self._rpc, self._reply_class, self._metadata = rpc, reply_class, tuple(metadata)
        self._bodies = cycle(bodies)
        self._load, self._started = Load(), 0.0
        self.measured = Measurements()
        """Measurements of the current or last run."""

    async def run(self, load: Load) -> None:
        """Send calls until the load is complete and all have ended. If cancelled, the measurements remain."""
        self._load, self.measured = load, Measurements()
        cpu_s, self._started = time.thread_time(), time.perf_counter()
        try:
            await (self._run_open_loop() if load.rate else self._run_closed_loop())
        finally:
            self.measured.elapsed_s = time.perf_counter() - self._started
            self.measured.busy = (time.thread_time() - cpu_s) / self.measured.elapsed_s

    @property
    def _end(self) -> float:
        return math.inf if self._load.duration_s is None else self._started + self._load.duration_s

    async def _run_closed_loop(self) -> None:
        turns, end = iter(count() if self._load.num_calls is None else range(self._load.num_calls)), self._end

        async def call_in_turn() -> None:
            while time.perf_counter() < end and next(turns, None) is not None:
                await self._call()

        async with asyncio.TaskGroup() as group:
            for _ in range(self._load.concurrency):
                group.create_task(call_in_turn())

    async def _run_open_loop(self) -> None:
        load, end, free = self._load, self._end, asyncio.Semaphore(self._load.max_in_flight)
        assert load.rate
        next_due = math.inf

        async def call_and_release(due: float) -> None:
            try:
                await self._call(due)
            finally:
                free.release()

        try:
            async with asyncio.TaskGroup() as group:
                for next_due in takewhile(lambda due: due < end, load.due_times(self._started)):
                    await asyncio.sleep(max(0.0, next_due - time.perf_counter()))
                    await free.acquire()
                    if time.perf_counter() >= end + _MAX_LATE_S:
                        return
                    group.create_task(call_and_release(next_due))
                next_due = math.inf
                if load.duration_s is not None:
                    await asyncio.sleep(max(0.0, end - time.perf_counter()))
        finally:
            overdue_s = min(end, time.perf_counter()) - next_due
            overdue = math.ceil(max(0.0, overdue_s) * load.rate)
            left = overdue if load.num_calls is None else load.num_calls - self.measured.num_sent
            self.measured.num_unsent = min(overdue, left)

    async def _call(self, due: float | None = None) -> None:
        measured, sent = self.measured, time.perf_counter()
        due = sent if due is None else due
        measured.num_sent += 1
        measured.last_sent_s = sent - self._started
        measured.max_late_s = max(measured.max_late_s, sent - due)
        try:
            raw = await self._rpc(next(self._bodies), timeout=self._load.timeout_s, metadata=self._metadata)
            ended = time.perf_counter()
            reply = self._reply_class.FromString(raw)
        except grpc.aio.AioRpcError as error:
            measured.add_failure(error.code().name, error.details() or "")
        except DecodeError:
            measured.add_failure("INTERNAL", f"the reply is not a valid `{self._reply_class.DESCRIPTOR.full_name}`")
        else:
            measured.last_reply_s = ended - self._started
            measured.add_reply(reply, ended - due)
