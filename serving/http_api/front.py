"""HTTP front: listens, and runs the web server in the event loop of the server."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from serving.http_api.connection import Connection
from serving.http_api.tls import TlsContext

BACKLOG = 1024
IDLE_S = 75.0
"""Seconds after which an idle connection is closed; above the 60 s of common proxies, which would otherwise send a
request on a connection that is being closed."""
STEP_S = 0.05
"""Seconds between checks of the connections while the server drains."""

logger = logging.getLogger(__name__)
logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # malformed requests of port scanners


class HttpFront:
    """Web server of the operations. Call `start` and `stop` in one event loop."""

    def __init__(self, app: ASGIApp, *, max_connections: int, unread_s: float, tls: TlsContext | None = None) -> None:
        """Set up the web server.

        Args:
            app: answers the requests.
            max_connections: maximum number of open connections.
            unread_s: seconds in which a client must read something of a reply that waits for it.
            tls: the server's certificate; None for plain text.
        """
        self._tls = tls
        config = uvicorn.Config(
            app,
            http=type("BoundedConnection", (Connection,), {"max_connections": max_connections, "unread_s": unread_s}),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(IDLE_S),
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._listener: asyncio.Server | None = None
        self._clock: asyncio.Task[None] | None = None
        self.port = 0
        """Port; 0 before `start`."""

    async def start(self, host: str, port: int) -> None:
        """Listen.

        Raises:
            OSError: when the address is not available.
        """
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            self._connection,
            host,
            port,
            ssl=self._tls.context if self._tls else None,
            backlog=BACKLOG,
            family=socket.AF_UNSPEC,
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        self._clock = asyncio.create_task(self._every_second())

    def _connection(self) -> asyncio.Protocol:
        server = self._server
        return server.config.http_protocol_class(  # type: ignore[call-arg, union-attr, return-value]
            config=server.config, server_state=server.server_state, app_state={}
        )

    async def _every_second(self) -> None:
        """Update the header `date` of replies, and take a renewed certificate."""
        while True:
            await self._server.on_tick(0)
            if self._tls:
                self._tls.refresh()
            await asyncio.sleep(1)

    def make_room(self) -> None:
        """Close the connections whose clients have left a reply unread for too long, to free its memory."""
        for connection in list(self._server.server_state.connections):
            if isinstance(connection, Connection) and connection.has_unread_reply:
                logger.debug("closed a connection whose client reads too slowly, as others need the memory")
                connection.transport.abort()

    async def stop(self, grace_s: float) -> None:
        """Accept no more connections, and end those that are open when their requests have been answered.

        Args:
            grace_s: seconds after which running requests are cancelled.
        """
        if self._listener is None:
            return
        self._listener.close()
        state: Any = self._server.server_state
        for connection in list(state.connections):
            connection.shutdown()
        end_s = asyncio.get_running_loop().time() + grace_s
        while state.connections and asyncio.get_running_loop().time() < end_s:
            await asyncio.sleep(STEP_S)
        for task in list(state.tasks):
            task.cancel()
        for connection in list(state.connections):
            with suppress(Exception):
                connection.transport.abort()
        if self._clock:
            self._clock.cancel()
