"""A port that passes connections on to another port: what it passes can be cut or silenced, as by a network."""

from __future__ import annotations

import asyncio
import threading


class Relay:
    """Listens on 127.0.0.1, in a thread of its own, until it is closed."""

    def __init__(self, upstream_port: int, port: int = 0) -> None:
        self._upstream_port = upstream_port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        try:
            self._server = self._loop.run_until_complete(asyncio.start_server(self._pass, "127.0.0.1", port))
        except OSError:
            self._loop.close()
            raise
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread.start()

    def drop(self) -> None:
        """Cut all connections."""
        self._loop.call_soon_threadsafe(self._abort)

    def silence(self, silent: bool) -> None:
        """Connections stay, but nothing goes through."""
        self._loop.call_soon_threadsafe(self._flowing.clear if silent else self._flowing.set)

    def close(self) -> None:
        """Cut all connections and listen no more."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(to_server)
        for source, sink in ((reader, to_server), (from_server, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                await self._flowing.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass  # the other side has gone
        finally:
            sink.transport.abort()
            self._writers.discard(sink)

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _end(self) -> None:
        self._server.close()
        self._abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the next turn of the loop
