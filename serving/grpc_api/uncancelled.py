"""Reads of gRPC that go on when the task that waits for them is cancelled.

When the task that awaits a batch of gRPC operations is cancelled, gRPC leaks the memory of that batch: some hundred
bytes, and the message that it may bring (grpc/grpc issue 43360). Clients can cancel as many calls as they like. A task
of its own for each read would avoid the leak, too, at a higher cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


async def uncancelled(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await a coroutine that awaits asyncio futures. When this is cancelled, the coroutine ends by itself."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            future = coroutine.send(None)
            future._asyncio_future_blocking = False  # as a task does with the future that it waits for
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
    """Resume a coroutine whose result nobody waits for; gRPC's reads await one future only."""
    with suppress(Exception):
        coroutine.send(None)
    coroutine.close()
