"""Load on a server, one run after the other: calls in flight (closed loop), or calls due per second (open loop)."""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, cycle, takewhile
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError

from bertline._connection import Connection
from bertline.bench.inputs import Calls
from bertline.bench.report import Load, Run
from bertline.errors import ConnectionFailed

SET_UP_S = 30.0
"""Timeout for connecting and finding the model. --timeout applies only to the measured calls."""
_MAX_LATE_S = 0.1
"""Time after the end of a run in which overdue calls are still sent, in seconds."""


def run_loads(
    connection: Connection, calls: Calls, loads: Sequence[Load], warm_up_s: float, show: Callable[[Run], None]
) -> tuple[list[Run], bool]:
    """Load a server and measure. Ctrl-C ends the measurement early and keeps its results.

    Args:
        connection: server, credentials and priority.
        calls: calls to send.
        loads: load of each run.
        warm_up_s: seconds of the same load before each run; not measured.
        show: gets each run when it has ended.

    Returns:
        The runs, and whether Ctrl-C ended them.

    Raises:
        ConnectionFailed: if the server cannot be reached. Failed calls are counted, not raised.
    """
    runs: list[Run] = []

    async def measure() -> bool:
        options = {"grpc.enable_retries": 0}  # refused calls are counted, not sent again
        try:
            async with connection.open(grpc.aio, check_health=False, more_options=options) as channel:
                await _wait_until_ready(channel, connection.target)
                # Bytes in both directions: serialising and parsing are not timed.
                rpc = partial(channel.unary_unary(calls.path), metadata=connection.metadata)
                bodies = cycle(calls.bodies)
                for load in loads:
                    if warm_up_s:
                        warm_up = Run(replace(load, duration_s=warm_up_s, num_calls=None))
                        await LoadGenerator(warm_up, rpc, calls.reply_class, bodies).send()
                    run = Run(load, calls.batch_size)
                    try:
                        await LoadGenerator(run, rpc, calls.reply_class, bodies).send()
                    finally:
                        runs.append(run)
                        show(run)
        except asyncio.CancelledError:
            return True
        return False

    # select wakes up about 0.1 ms late; epoll rounds up to 1 ms, which would delay the calls of an open loop.
    with asyncio.Runner(loop_factory=partial(asyncio.SelectorEventLoop, selectors.SelectSelector())) as runner:
        interrupted = runner.run(measure())
    return runs, interrupted


async def _wait_until_ready(channel: grpc.aio.Channel, target: str) -> None:
    try:
        async with asyncio.timeout(SET_UP_S):
            await channel.channel_ready()
    except TimeoutError as error:
        raise ConnectionFailed(f"no connection to `{target}` within {SET_UP_S:g} s") from error


class LoadGenerator:
    """Sender of the calls of one run.

    Args:
        run: receives the measurements.
        rpc: sends the bytes of a request, and returns those of the reply.
        reply_class: message of the replies.
        bodies: requests.
    """

    def __init__(self, run: Run, rpc: Callable[..., Any], reply_class: Any, bodies: Iterator[bytes]) -> None:
        self._run, self._rpc, self._reply_class, self._bodies = run, rpc, reply_class, bodies
        self._started = time.perf_counter()
        self._end = math.inf if run.load.duration_s is None else self._started + run.load.duration_s

    async def send(self) -> None:
        """Send calls until the load is complete and all have ended. If cancelled, the measurements remain."""
        cpu_s = time.thread_time()
        try:
            await (self._run_open_loop() if self._run.load.rate else self._run_closed_loop())
        finally:
            self._run.elapsed_s = time.perf_counter() - self._started
            self._run.busy = (time.thread_time() - cpu_s) / self._run.elapsed_s

    async def _run_closed_loop(self) -> None:
        turns = iter(count() if self._run.load.num_calls is None else range(self._run.load.num_calls))

        async def call_in_turn() -> None:
            while time.perf_counter() < self._end and next(turns, None) is not None:
                await self._call()

        async with asyncio.TaskGroup() as group:
            for _ in range(self._run.load.concurrency):
                group.create_task(call_in_turn())

    async def _run_open_loop(self) -> None:
        load, end, free = self._run.load, self._end, asyncio.Semaphore(self._run.load.max_in_flight)
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
            left = overdue if load.num_calls is None else load.num_calls - self._run.num_sent
            self._run.num_unsent = min(overdue, left)

    async def _call(self, due: float | None = None) -> None:
        run, sent = self._run, time.perf_counter()
        due = sent if due is None else due
        run.num_sent += 1
        run.last_sent_s = sent - self._started
        run.max_late_s = max(run.max_late_s, sent - due)
        try:
            raw = await self._rpc(next(self._bodies), timeout=run.load.timeout_s)
            ended = time.perf_counter()
            reply = self._reply_class.FromString(raw)
        except grpc.aio.AioRpcError as error:
            run.add_failure(error.code().name, error.details() or "")
        except DecodeError:
            run.add_failure("INTERNAL", f"the reply is not a valid `{self._reply_class.DESCRIPTOR.full_name}`")
        else:
            run.last_reply_s = ended - self._started
            run.add_reply(reply, ended - due)
