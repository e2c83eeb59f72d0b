"""HTTP front: listens, and runs the connections in the event loop of the server."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

from serving.http_api.connection import CHECK_S, Connection, Connections
from serving.http_api.tls import TlsContext

BACKLOG = 1024


class HttpFront:
    """Web server of the operations. Call `start` and `stop` in one event loop."""

    def __init__(self, connections: Connections, tls: TlsContext | None = None) -> None:
        """Set up the web server.

        Args:
            connections: answer the requests.
            tls: the server's certificate; None for plain text.
        """
        self._connections = connections
        self._tls = tls
        self._listener: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.port = 0
        """Port; 0 before `start`."""

    async def start(self, host: str, port: int) -> None:
        """Listen.

        Raises:
            OSError: when the address is not available.
        """
        self._listener = await asyncio.get_running_loop().create_server(
            partial(Connection, self._connections),
            host,
            port,
            ssl=self._tls.context if self._tls else None,
            backlog=BACKLOG,
            family=socket.AF_UNSPEC,
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        self._tasks = [asyncio.create_task(item) for item in (self._connections.watch(), self._renew())]

    async def _renew(self) -> None:
        """Take renewed certificates until cancelled."""
        while self._tls:
            self._tls.refresh()
            await asyncio.sleep(1)

    def make_room(self) -> None:
        """Close the connections that hold memory although nothing moves."""
        self._connections.make_room()

    async def stop(self, grace_s: float) -> None:
        """Accept no more connections, and end those that are open when their requests have been answered.

        Args:
            grace_s: seconds after which running requests are cancelled.
        """
        if self._listener is None:
            return
        self._listener.close()
        for connection in list(self._connections.open):
            connection.shut_down()
        end_s = asyncio.get_running_loop().time() + grace_s
        while self._connections.open and asyncio.get_running_loop().time() < end_s:
            await asyncio.sleep(CHECK_S / 5)
        for connection in list(self._connections.open):
            connection.abort()
        for task in [*self._connections.tasks, *self._tasks]:
            task.cancel()
