"""Reads of gRPC that continue when the task that waits for them is cancelled.

If a task is cancelled while it awaits a batch of gRPC operations, gRPC leaks the memory of the batch: some hundred
bytes, and the message that it may bring (grpc/grpc issue 43360). Clients can cancel as many calls as they like. A
separate task for each read would avoid the leak, too, but costs more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


async def uncancelled(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await a coroutine that awaits asyncio futures. If this is cancelled, the coroutine still runs to its end."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            future = coroutine.send(None)
            future._asyncio_future_blocking = False  # as a task does with the future that it awaits
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
    """Resume a coroutine whose result nobody needs. gRPC's reads await only one future."""
    with suppress(Exception):
        coroutine.send(None)
    coroutine.close()
