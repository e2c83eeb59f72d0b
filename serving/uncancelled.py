"""Reads of gRPC that go on when the task that waits for them is cancelled.

A batch of gRPC whose awaiting task is cancelled loses its memory for good, some hundred bytes and the message that it
may bring (grpc/grpc issue 43360), and clients can cancel as many calls as they like. A task of its own for each read
does the same at a higher cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


async def uncancelled(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await a coroutine that awaits futures of asyncio; cancelling this leaves it to end by itself."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            future = coroutine.send(None)
            future._asyncio_future_blocking = False  # as a task does with what it is to wait for
            waiter: asyncio.Future[None] = loop.create_future()
            future.add_done_callback(lambda _, waiter=waiter: waiter.done() or waiter.set_result(None))
            try:
                await waiter
            except asyncio.CancelledError:
                future.add_done_callback(lambda _: _finish(coroutine))
                raise
    except StopIteration as done:
        return done.value


def _finish(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Go on where nobody waits for the result; gRPC's reads await one future only."""
    with suppress(Exception):
        coroutine.send(None)
    coroutine.close()
