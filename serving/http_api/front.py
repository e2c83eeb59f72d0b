"""HTTP front: listens, with TLS if there are certificates, and runs the connections in the event loop of the server."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from functools import partial

from serving.core.credentials import TLS, FileWatcher, TlsFiles, check_files, pem_content
from serving.http_api.connection import CHECK_S, Connection, Connections

BACKLOG = 1024

logger = logging.getLogger(__name__)


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


class TlsContext:
    """Context of TLS connections. After `refresh`, new connections use renewed files.

    Authorities cannot be taken out of a context, so each renewal makes a new one, and the first context hands every
    new connection to it.
    """

    def __init__(self, files: TlsFiles) -> None:
        """Read the files.

        Raises:
            ValueError: when a file cannot be used. The message names it.
            OSError: when a file cannot be read.
        """
        self._files = files
        self._watcher = FileWatcher(TLS, files.paths, self._read)
        self._in_use = self._watcher.current()
        self.context = self._renewed = _context(files)
        self.context.sni_callback = self._hand_over

    def _read(self) -> list[bytes]:
        check_files(self._files)
        return [pem_content(path) for path in self._files.paths]

    def _hand_over(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
        """Set the context of a new connection; OpenSSL calls this in every handshake, also without a server name."""
        connection.context = self._renewed

    def refresh(self) -> None:
        """Use renewed files for new connections."""
        if (current := self._watcher.current()) is self._in_use:
            return
        try:
            self._renewed = _context(self._files)
        except (OSError, ssl.SSLError) as error:  # replaced again; the next call tries again
            logger.warning("renewed certificates are not in use for HTTP: %s", error)
            return
        self._in_use = current
        logger.info("renewed certificates are in use for new HTTP connections")


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.client_ca)
    context.load_cert_chain(files.cert, files.key)
    if files.client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        context.num_tickets = 0  # a resumed connection would not be checked against renewed authorities
        context.options |= ssl.OP_NO_TICKET
    return context
