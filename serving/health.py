"""The health service, with watches that end when the server drains."""

from __future__ import annotations

import asyncio
from typing import Any

from grpc_health.v1 import health


class HealthServicer(health.aio.HealthServicer):  # type: ignore[misc]
    """grpc.health.v1. A watch never ends of itself, so that each open one would use up the whole grace of a drain."""

    def __init__(self) -> None:
        super().__init__()
        self._ended = asyncio.Event()

    def end_watches(self) -> None:
        """End all watches, with OK."""
        self._ended.set()

    async def Watch(self, request: Any, context: Any) -> None:
        """Tell a watcher of every change."""
        watching = asyncio.create_task(super().Watch(request, context))
        ended = asyncio.create_task(self._ended.wait())
        try:
            done, _ = await asyncio.wait((watching, ended), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            watching.cancel()
            ended.cancel()
