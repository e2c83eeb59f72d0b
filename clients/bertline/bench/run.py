"""Runs of `bertline bench`, one after the other over one connection."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import grpc.aio

from bertline._connection import Connection
from bertline.bench.inputs import Calls
from bertline.bench.load import Load, LoadGenerator
from bertline.bench.report import Run
from bertline.errors import ConnectionFailed

SET_UP_S = 30.0
"""Timeout for connecting and finding the model. --timeout applies only to the measured calls."""


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
                rpc = channel.unary_unary(calls.path)
                generator = LoadGenerator(rpc, calls.reply_class, calls.bodies, connection.metadata)
                for load in loads:
                    if warm_up_s:
                        await generator.run(replace(load, duration_s=warm_up_s, num_calls=None))
                    try:
                        await generator.run(load)
                    finally:
                        runs.append(Run(load, generator.measured, calls.batch_size))
                        show(runs[-1])
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
