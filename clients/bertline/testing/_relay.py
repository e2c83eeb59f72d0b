"""Relay between two ports, whose connections can be cut or silenced, as by a network."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress


class Relay:
    """Relay from a port of 127.0.0.1 to another port. Runs in its own thread until it is closed.

    Args:
        upstream_port: port to connect to.
        port: port to listen on; 0 for a free one.
    """

    def __init__(self, upstream_port: int, port: int = 0) -> None:
        self._upstream_port = upstream_port
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        """Both ends of each connection."""
        self._flows = asyncio.Event()
        self._flows.set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        listen = asyncio.start_server(self._connect, "127.0.0.1", port)
        try:
            self._server = asyncio.run_coroutine_threadsafe(listen, self._loop).result(10)
        except OSError:
            self._end_loop()
            raise
        self.port: int = self._server.sockets[0].getsockname()[1]

    def drop(self) -> None:
        """Cut all connections."""
        self._loop.call_soon_threadsafe(self._abort)

    def silence(self, silent: bool) -> None:
        """Stop or resume the data of all connections, without closing them."""
        self._loop.call_soon_threadsafe(self._flows.clear if silent else self._flows.set)

    def close(self) -> None:
        """Cut all connections and stop listening. May be called again."""
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
            self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _end(self) -> None:
        self._flows.set()
        for listener in self._server.sockets:
            self._loop.remove_reader(listener.fileno())
        # Connections that were just accepted have a task, too. asyncio does not close them with the server.
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            self._abort()
            await asyncio.wait(tasks, timeout=0.01)
        self._server.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self._writers.add(writer)
            upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(upstream)
        await asyncio.gather(self._forward(reader, upstream), self._forward(upstream_reader, writer))
        for end in (writer, upstream):  # what they still have to send keeps them open
            with suppress(OSError):
                await end.wait_closed()
        self._writers -= {writer, upstream}

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
