"""Load a server with Embed calls from a separate process: by concurrency, or at a rate."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import grpc

from benchmarks.worker import Worker
from bertline.v1 import encoder_pb2 as pb
from bertline.v1.encoder_pb2_grpc import EncoderStub

REFUSALS = ("RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")
"""Statuses of calls that a server under load refuses."""


@dataclass(frozen=True, kw_only=True)
class EmbedLoad:
    """Embed calls to send."""

    target: str
    texts: Path
    """File with one text per line."""
    seconds: float
    num_texts: int = 1
    """Texts in each call."""
    connections: int = 1
    """Connections, each with `num_in_flight` calls."""
    num_in_flight: int = 1
    """Calls in flight: the next one starts when one has ended."""
    calls_per_s: float | None = None
    """Calls that start per second, even if earlier ones have not ended. Replaces `num_in_flight`."""
    pause_s: float = 0.0
    """Mean pause between the end of a call and the next call."""
    timeout_s: float | None = None
    priority: str = ""
    """Metadata `priority` of the calls."""
    max_words: int | None = None
    """Longer texts are cut to this."""


@dataclass
class LoadResult:
    """Results of the calls that ended in time."""

    seconds: float = 0.0
    num_texts: int = 0
    """Texts in answered calls."""
    latencies: list[float] = field(default_factory=list)
    """Seconds of each answered call."""
    codes: Counter[str] = field(default_factory=Counter)
    """Number of calls by status; TIMEOUT if the client gave up."""

    @property
    def failures(self) -> dict[str, int]:
        """Number of calls by status that no load explains."""
        return {code: count for code, count in self.codes.items() if code not in ("OK", "TIMEOUT", *REFUSALS)}

    @property
    def texts_per_s(self) -> float:
        """Throughput of answered calls."""
        return self.num_texts / self.seconds


def read_texts(path: Path, at_least: int = 1) -> list[str]:
    """Read a file with one text per line.

    Args:
        path: of the file.
        at_least: texts that the file must have.

    Raises:
        ValueError: if it has fewer.
    """
    texts = path.read_text(encoding="utf-8").splitlines()
    if len(texts) < at_least:
        raise ValueError(f"`{path}` has {len(texts)} texts, one per line; at least {at_least} are needed")
    return texts


def percentile(values: Sequence[float], fraction: float) -> float:
    """Return the value below which a fraction of the values lies; NaN for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] if ordered else float("nan")


class LoadClient(Worker):
    """Process that loads a server."""

    def __init__(self) -> None:
        super().__init__(_serve)

    def start(self, load: EmbedLoad) -> None:
        """Start a load; `result` waits for its end."""
        self.send(load)

    def result(self) -> LoadResult:
        """Wait for the end of the load, and return its result.

        Raises:
            ValueError: if a call failed, or none was answered.
        """
        found: LoadResult = self.receive()
        if found.failures:
            raise ValueError(f"calls failed: {found.failures}; see the log of the server")
        if not found.num_texts:
            raise ValueError(f"no call was answered within {found.seconds:g} s ({dict(found.codes)}); give more time")
        return found

    def run(self, load: EmbedLoad) -> LoadResult:
        """Run a load, and return its result."""
        self.start(load)
        return self.result()


_OPTIONS = (
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),  # calls go to all servers of a target
    ("grpc.use_local_subchannel_pool", 1),  # each channel has separate connections
)


def _serve(connection: Connection) -> None:
    while True:
        connection.send(asyncio.run(_run(connection.recv())))


async def _run(load: EmbedLoad) -> LoadResult:
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(load.target, options=_OPTIONS))
            for _ in range(load.connections)
        ]
        calls, found, requests = [EncoderStub(channel).Embed for channel in channels], LoadResult(), _requests(load)
        try:
            await calls[0](next(requests))  # opens the connection
        except grpc.aio.AioRpcError as error:
            raise ValueError(f"the server does not embed: {error.details()}") from None
        end = time.perf_counter() + load.seconds

        async def one(call: Callable[..., Awaitable[object]]) -> None:
            await _call(call, next(requests), load, found, end)

        async def repeat(call: Callable[..., Awaitable[object]]) -> None:
            while time.perf_counter() < end:
                await one(call)
                if load.pause_s:
                    await asyncio.sleep(load.pause_s * random.random() * 2)

        if load.calls_per_s:
            await _at_a_rate(lambda: one(calls[0]), load.calls_per_s, end)
        else:
            await asyncio.gather(*(repeat(call) for call in calls for _ in range(load.num_in_flight)))
        found.seconds = load.seconds
        return found


async def _at_a_rate(one: Callable[[], Awaitable[None]], calls_per_s: float, end: float) -> None:
    begun, due = set(), time.perf_counter()
    while due < end:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.ensure_future(one())
        begun.add(task)
        task.add_done_callback(begun.discard)
        due += random.expovariate(calls_per_s)
    await asyncio.gather(*begun)


async def _call(
    call: Callable[..., Awaitable[object]], request: pb.EmbedRequest, load: EmbedLoad, found: LoadResult, end: float
) -> None:
    started = time.perf_counter()
    try:
        await call(request, timeout=load.timeout_s, metadata=(("priority", load.priority),) if load.priority else None)
        code = "OK"
    except grpc.aio.AioRpcError as error:
        code = error.code().name
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and not error.trailing_metadata():
            code = "TIMEOUT"  # of this client: a status of the server has metadata
    ended = time.perf_counter()
    if ended > end:
        return
    found.codes[code] += 1
    if code == "OK":
        found.num_texts += len(request.texts)
        found.latencies.append(ended - started)


def _requests(load: EmbedLoad) -> Iterator[pb.EmbedRequest]:
    texts = read_texts(load.texts)
    if load.max_words:
        texts = [" ".join(text.split()[: load.max_words]) for text in texts]
    source = itertools.cycle(texts)
    while True:
        yield pb.EmbedRequest(texts=list(itertools.islice(source, load.num_texts)), truncate=True)
