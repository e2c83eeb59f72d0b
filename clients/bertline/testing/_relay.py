"""Relay between two ports, whose connections can be cut or silenced, as by a network."""

from __future__ import annotations

import asyncio
import threading
from typing import Any


class Relay:
    """Relay from a port of 127.0.0.1 to another port. Runs in its own thread until it is closed.

    Args:
        upstream_port: port to connect to.
        port: port to listen on; 0 for a free one.
    """

    def __init__(self, upstream_port: int, port: int = 0) -> None:
        self.upstream_port = upstream_port
        self.loop = asyncio.new_event_loop()
        self.sides: set[Side] = set()
        """Both ends of each connection."""
        self.is_silent = False
        self.is_closing = False
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._server = asyncio.run_coroutine_threadsafe(self._listen(port), self.loop).result(10)
        except OSError:
            self._end_loop()
            raise
        self.port: int = self._server.sockets[0].getsockname()[1]

    def drop(self) -> None:
        """Cut all connections."""
        self.loop.call_soon_threadsafe(self._abort)

    def silence(self, silent: bool) -> None:
        """Stop or resume the data of all connections, without closing them."""
        self.loop.call_soon_threadsafe(self._silence, silent)

    def close(self) -> None:
        """Cut all connections and stop listening. May be called again."""
        if self.loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self.loop).result(10)
        self._end_loop()

    def _end_loop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _listen(self, port: int) -> asyncio.Server:
        return await self.loop.create_server(lambda: Side(self), "127.0.0.1", port)

    def _abort(self) -> None:
        for side in self.sides:
            side.transport.abort()

    def _silence(self, silent: bool) -> None:
        self.is_silent = silent
        for side in self.sides:
            side.read(not silent)

    async def _end(self) -> None:
        self.is_closing = True
        for listener in self._server.sockets:
            self.loop.remove_reader(listener.fileno())
        # Wait for connections that were just accepted. asyncio does not close them with the server.
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.gather(*tasks, return_exceptions=True)
        self._server.close()
        self._abort()
        while self.sides:
            await asyncio.sleep(0)


class Side(asyncio.Protocol):
    """End of a relayed connection: to the client, or to the server. The former opens the latter."""

    transport: Any

    def __init__(self, relay: Relay, peer: Side | None = None) -> None:
        self._relay = relay
        self._peer = peer
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to forward when both ends are connected."""
        self.transport = transport
        self._relay.sides.add(self)
        if self._peer is None:
            self.read(False)
            self._task = self._relay.loop.create_task(self._connect())
        else:
            self._peer._peer = self
            self.read(True)
            self._peer.read(True)
        if self._relay.is_closing or (self._peer and self._peer.transport.is_closing()):
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Forward data to the other end."""
        if self._peer:
            self._peer.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        """Cut the other end."""
        self._relay.sides.discard(self)
        if self._peer:
            self._peer.transport.abort()

    def pause_writing(self) -> None:
        """Pause the other end while this one cannot write."""
        if self._peer:
            self._peer.read(False)

    def resume_writing(self) -> None:
        """Resume the other end."""
        if self._peer:
            self._peer.read(True)

    def read(self, reads: bool) -> None:
        """Resume or pause reading."""
        if reads and self._peer and not self._relay.is_silent:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    async def _connect(self) -> None:
        try:
            await self._relay.loop.create_connection(
                lambda: Side(self._relay, self), "127.0.0.1", self._relay.upstream_port
            )
        except OSError:
            self.transport.abort()
