"""Load on a server, from a process of its own: so many calls in flight, or so many a second."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import grpc

from benchmarks.worker import Worker
from bertline.v1 import encoder_pb2 as pb
from bertline.v1.encoder_pb2_grpc import EncoderStub


@dataclass(frozen=True, kw_only=True)
class Load:
    """Calls of Embed."""

    target: str
    texts: Path
    """One a line."""
    seconds: float
    num_texts: int = 1
    """Of each call."""
    num_in_flight: int = 1
    """Calls that one after the other are under way at the same time."""
    calls_per_s: float | None = None
    """Calls that are begun, whatever became of those before; instead of `num_in_flight`."""
    pause_s: float = 0.0
    """Between the end of a call and the next."""
    timeout_s: float | None = None
    max_words: int | None = None
    """Texts are cut there."""


@dataclass
class Found:
    """What became of calls that ended in time."""

    seconds: float = 0.0
    num_texts: int = 0
    """Answered."""
    latencies: list[float] = field(default_factory=list)
    """Of answered calls, in seconds."""
    refusals: list[float] = field(default_factory=list)
    """Of calls that were refused (RESOURCE_EXHAUSTED, or DEADLINE_EXCEEDED from the server): how soon."""
    codes: Counter[str] = field(default_factory=Counter)

    @property
    def texts_per_s(self) -> float:
        """Answered."""
        return self.num_texts / self.seconds


def read_texts(path: Path, at_least: int = 1) -> list[str]:
    """Those of a file, one a line.

    Raises:
        ValueError: when there are fewer.
    """
    texts = path.read_text(encoding="utf-8").splitlines()
    if len(texts) < at_least:
        raise ValueError(f"`{path}` has {len(texts)} texts, one a line; this needs {at_least} or more")
    return texts


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share of values lies; NaN of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


class Client(Worker):
    """A process that loads a server when it is told to."""

    def __init__(self) -> None:
        super().__init__(_serve)

    def start(self, load: Load) -> None:
        """Begin; `result` waits for the end."""
        self.send(load)

    def result(self) -> Found:
        """What became of it.

        Raises:
            ValueError: when no call was answered.
        """
        found: Found = self.receive()
        if not found.num_texts:
            raise ValueError(f"no call was answered within {found.seconds:g} s ({dict(found.codes)}); it needs longer")
        return found

    def run(self, load: Load) -> Found:
        """Begin, and wait for the end."""
        self.start(load)
        return self.result()


def _serve(connection: Connection) -> None:
    while True:
        connection.send(asyncio.run(_run(connection.recv())))


async def _run(load: Load) -> Found:
    async with grpc.aio.insecure_channel(load.target) as channel:
        call, found = EncoderStub(channel).Embed, Found()
        requests = _requests(load)
        try:
            await call(next(requests))  # the connection is there, then
        except grpc.aio.AioRpcError as error:
            raise ValueError(f"the server does not embed: {error.details()}") from None
        started = time.perf_counter()
        end = started + load.seconds

        async def one() -> None:
            await _call(call, next(requests), load, found, end)

        await (_at_a_rate(one, load.calls_per_s, end) if load.calls_per_s else _one_by_one(one, load, end))
        found.seconds = load.seconds
        return found


async def _one_by_one(one: Callable[[], Awaitable[None]], load: Load, end: float) -> None:
    async def repeat() -> None:
        while time.perf_counter() < end:
            await one()
            if load.pause_s:
                await asyncio.sleep(load.pause_s * random.random() * 2)

    await asyncio.gather(*(repeat() for _ in range(load.num_in_flight)))


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
    call: Callable[..., Awaitable[object]], request: pb.EmbedRequest, load: Load, found: Found, end: float
) -> None:
    started = time.perf_counter()
    try:
        await call(request, timeout=load.timeout_s)
        code = "OK"
    except grpc.aio.AioRpcError as error:
        code = error.code().name
        if "deadline" in (error.details() or "").lower() and time.perf_counter() - started >= (load.timeout_s or 0):
            code = "TIMEOUT"
    ended = time.perf_counter()
    if ended > end:
        return
    found.codes[code] += 1
    if code == "OK":
        found.num_texts += len(request.texts)
        found.latencies.append(ended - started)
    elif code != "TIMEOUT":
        found.refusals.append(ended - started)


def _requests(load: Load) -> Iterator[pb.EmbedRequest]:
    texts = read_texts(load.texts)
    if load.max_words:
        texts = [" ".join(text.split()[: load.max_words]) for text in texts]
    source = itertools.cycle(texts)
    while True:
        yield pb.EmbedRequest(texts=list(itertools.islice(source, load.num_texts)), truncate=True)
