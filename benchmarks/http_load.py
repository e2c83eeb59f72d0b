"""Load the HTTP API of a server from a separate process, with as little work for the client as possible."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

from benchmarks.worker import Worker

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class HttpLoad:
    """POST requests to send on connections that are kept."""

    url: str
    bodies: Sequence[bytes]
    """JSON bodies, sent one after the other."""
    num_items: int
    """Texts or documents in each body."""
    num_in_flight: int
    """Connections; each sends its next request when it has the reply."""
    seconds: float


class HttpClient(Worker):
    """Process that loads a server. Replies are received, not parsed."""

    def __init__(self) -> None:
        super().__init__(_serve)

    def items_per_s(self, load: HttpLoad) -> float:
        """Run a load; return the texts or documents per second of replies that arrived in time.

        Raises:
            ValueError: if a request is refused.
        """
        self.send(load)
        found: float = self.receive()
        return found


def _serve(connection: Connection) -> None:
    while True:
        connection.send(asyncio.run(_run(connection.recv())))


async def _run(load: HttpLoad) -> float:
    bodies, count, end = itertools.cycle(load.bodies), [0], time.perf_counter() + load.seconds
    parts = urlsplit(load.url)
    connections = [await asyncio.open_connection(parts.hostname, parts.port) for _ in range(load.num_in_flight)]
    await asyncio.gather(*(_repeat(load, item, bodies, count, end) for item in connections))
    for _, writer in connections:
        writer.close()
    return count[0] / load.seconds


async def _repeat(
    load: HttpLoad,
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    bodies: Iterator[bytes],
    count: list[int],
    end: float,
) -> None:
    while time.perf_counter() < end:
        await _ask(connection, load.url, next(bodies))
        if time.perf_counter() <= end:
            count[0] += load.num_items


async def _ask(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], url: str, body: bytes) -> None:
    reader, writer = connection
    parts = urlsplit(url)
    head = f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    reply = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(reply)
    assert length
    data = await reader.readexactly(int(length[1]))
    if not reply.startswith(b"HTTP/1.1 200"):
        raise ValueError(f"the server refuses: {data[:300].decode()}")
