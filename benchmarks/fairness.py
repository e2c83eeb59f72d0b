"""Measure short queries beside bulk work: answers in time, latency against an idle server, and lost bulk throughput.

    python -m benchmarks.fairness models
    python -m benchmarks.fairness models --callers 256 --priority bulk

One caller sends short queries, one after the other. Bulk callers keep requests of long texts in flight: first eight on
one connection, as `bertline embed` does, then one on each of many connections. Clients and server share the cores of
this machine.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Literal
from urllib.request import urlopen

import grpc
import tyro

from benchmarks.embed_load import percentile
from benchmarks.server_process import ServerProcess, running_server
from benchmarks.worker import Worker
from bertline.v1 import encoder_pb2 as pb
from bertline.v1.encoder_pb2_grpc import EncoderStub
from training.bounds import COUNT, POSITIVE, check_numbers
from training.command import command, parse

WORDS = "a server that no request can stall answers short queries while it computes long ones for somebody else".split()


@dataclass(frozen=True, kw_only=True)
class FairnessSettings:
    """Command line."""

    models: Annotated[Path, tyro.conf.Positional]
    """Directory with one model of task embedding."""
    callers: tuple[int, ...] = (32, 256)
    """Numbers of bulk callers; each has one connection and one request in flight."""
    words: Annotated[int, COUNT] = 240
    """Words in each text of a bulk request."""
    rows: Annotated[int, COUNT] = 64
    """Texts in each request of the job. Requests of the other bulk callers have a quarter of it."""
    queries: Annotated[int, COUNT] = 60
    """Short queries for each deadline, one every 0.1 s."""
    deadlines_s: tuple[float, ...] = (0.05, 0.25, 1.0, 0.0)
    """Deadlines of queries in seconds; 0 for none."""
    priority: Literal["interactive", "bulk"] = "interactive"
    """Priority of the other bulk callers. The job always has priority `bulk`."""
    seconds: Annotated[float, POSITIVE] = 8.0
    """Seconds to measure the throughput of bulk alone."""
    flags: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Server flag; repeat the option for several."""

    def __post_init__(self) -> None:
        check_numbers(self)


@dataclass(frozen=True, kw_only=True)
class BulkLoad:
    """Callers that always have requests in flight."""

    target: str
    connections: int
    in_flight: int
    rows: int
    words: int
    priority: str
    seconds: float


@dataclass
class QueryResults:
    """Results of short queries."""

    codes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    """Latency of each answered query."""
    queue_s: list[float] = field(default_factory=list)
    """Time in the server's queue of each answered query."""


def _work(connection: Connection) -> None:
    while True:
        connection.send(asyncio.run(_load(connection.recv())))


async def _load(bulk: BulkLoad) -> list[int]:
    """Keep bulk requests in flight. Return the number of answered requests of each caller."""
    source = random.Random(0)
    texts = [" ".join(source.choices(WORDS, k=bulk.words)) for _ in range(bulk.rows)]
    request, answered = pb.EmbedRequest(texts=texts, truncate=True), [0] * bulk.connections
    ends_s = time.perf_counter() + bulk.seconds

    async def send(caller: int, stub: EncoderStub) -> None:
        while time.perf_counter() < ends_s:
            try:
                await stub.Embed(request, metadata=(("priority", bulk.priority),), timeout=60)
                answered[caller] += 1
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
                await asyncio.sleep(0.1)

    async with AsyncExitStack() as stack:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(bulk.target, options=options))
            for _ in range(bulk.connections)
        ]
        await asyncio.gather(
            *(
                send(caller, EncoderStub(channel))
                for caller, channel in enumerate(channels)
                for _ in range(bulk.in_flight)
            )
        )
    return answered


def ask(target: str, count: int, deadline_s: float) -> QueryResults:
    """Send short queries, one after the other."""
    found = QueryResults()
    with grpc.insecure_channel(target) as channel:
        stub = EncoderStub(channel)
        grpc.channel_ready_future(channel).result(30)
        for _ in range(count):
            started = time.perf_counter()
            call = stub.Embed.future(pb.EmbedRequest(texts=["how far is it"]), timeout=deadline_s or None)
            found.codes[call.code().name] += 1
            took_s = time.perf_counter() - started
            if call.code() is grpc.StatusCode.OK:
                found.seconds.append(took_s)
                found.queue_s.append(call.result().timings.queue_s)
            time.sleep(max(0.0, 0.1 - took_s))
    return found


def tokens_per_s(server: ServerProcess, seconds: float) -> float:
    """Measure the tokens per second that the server computes."""

    def total() -> float:
        page = urlopen(server.metrics, timeout=10).read().decode()
        return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith("bertline_tokens_total{"))

    before, started = total(), time.perf_counter()
    time.sleep(seconds)
    return (total() - before) / (time.perf_counter() - started)


def measure(settings: FairnessSettings, server: ServerProcess, bulk: BulkLoad, worker: Worker, idle_s: float) -> None:
    """Print the latency of queries beside one bulk load, and the throughput that the bulk load loses."""
    queries_s = len(settings.deadlines_s) * settings.queries * 0.1
    worker.send(replace(bulk, seconds=1 + 2 * settings.seconds + queries_s))
    print(f"{bulk.connections} connections x {bulk.in_flight} requests of {bulk.rows} texts, {bulk.priority}")
    time.sleep(1)
    with ThreadPoolExecutor(1) as thread:
        rate = thread.submit(tokens_per_s, server, queries_s)
        all_s: list[float] = []
        for deadline_s in settings.deadlines_s:
            found = ask(server.target, settings.queries, deadline_s)
            all_s += found.seconds
            times = f"{_times(found.seconds, idle_s)}; in the queue p99 {1e3 * percentile(found.queue_s, 0.99):.1f} ms"
            print(f"  deadline {deadline_s or 'none'}: {dict(found.codes)}, {times}", flush=True)
    alone = tokens_per_s(server, settings.seconds)
    answered = worker.receive()
    print(f"  all: {_times(all_s, idle_s)}")
    ratio = rate.result() / max(alone, 1e-9)
    print(f"  {alone:,.0f} tokens/s without queries, {rate.result():,.0f} with ({ratio:.2f})")
    print(f"  requests of a bulk caller: {min(answered)} to {max(answered)}", flush=True)


def _times(seconds: Sequence[float], idle_s: float) -> str:
    shown = [f"{name} {1e3 * percentile(seconds, fraction):.1f} ms" for name, fraction in (("p50", 0.5), ("p99", 0.99))]
    return f"{', '.join(shown)}, {percentile(seconds, 0.99) / idle_s:.1f} times the idle median"


@command
def main() -> None:
    """Run the benchmark."""
    settings = parse(FairnessSettings, "benchmarks.fairness", __doc__)
    worker = Worker(_work)
    with running_server(settings.models, settings.flags) as server:
        idle = ask(server.target, settings.queries, 0.0)
        idle_s = statistics.median(idle.seconds)
        print(f"idle server: {_times(idle.seconds, idle_s)}")
        job = BulkLoad(
            target=server.target,
            connections=1,
            in_flight=8,
            rows=settings.rows,
            words=settings.words,
            priority="bulk",
            seconds=0.0,
        )
        raw = replace(job, in_flight=1, rows=max(1, settings.rows // 4), priority=settings.priority)
        kinds = [job, *(replace(raw, connections=count) for count in settings.callers)]
        for bulk in kinds:
            measure(settings, server, bulk, worker, idle_s)
    worker.close()


if __name__ == "__main__":
    main()
