"""Claim: single texts through the client reach most of the engine's speed, as small calls leave together.

    python -m benchmarks.coalescing models --texts sentences.txt

Callers in one process, each with one text at a time, with and without `coalesce`, in turns with the engine. Client,
server and engine share the cores of this machine. Latencies of few callers show that calls of an idle client do not
wait for others.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated

import tyro

from benchmarks.embed_load import percentile, read_texts
from benchmarks.engine import Engine
from benchmarks.server_process import embedding_model, running_server
from benchmarks.worker import Worker
from bertline import AsyncClient, BertlineError, Client
from training.bounds import COUNT, POSITIVE, check_numbers
from training.command import command, parse

WARM_UP_S = 0.5


@dataclass(frozen=True, kw_only=True)
class CoalescingSettings:
    """Command line."""

    models: Annotated[Path, tyro.conf.Positional]
    """Directory with one model of task embedding."""
    texts: Path
    """File with one text per line."""
    callers: Annotated[int, COUNT] = 64
    """Callers of the busy client."""
    seconds: Annotated[float, POSITIVE] = 4.0
    """Seconds of each measurement."""
    rounds: Annotated[int, COUNT] = 5
    """Rounds of all measurements."""

    def __post_init__(self) -> None:
        check_numbers(self)


@dataclass(frozen=True)
class Load:
    """Callers with one text at a time."""

    target: str
    texts: Path
    seconds: float
    callers: int
    coalesce: bool
    threads: bool
    """True for `Client` with threads, False for `AsyncClient`."""

    @property
    def name(self) -> str:
        """Name of the load."""
        client = "Client" if self.threads else "AsyncClient"
        return f"{client}, {self.callers} callers, {'together' if self.coalesce else 'each alone'}"


@dataclass
class Measured:
    """Calls of a load."""

    texts_per_s: float = 0.0
    cpu_ms: float = 0.0
    """CPU milliseconds of the client's process for each call."""
    latencies: list[float] = field(default_factory=list)
    """Seconds of each call."""


def _serve(connection: Connection) -> None:
    while True:
        load = connection.recv()
        try:
            connection.send(_threads(load) if load.threads else asyncio.run(_tasks(load)))
        except BertlineError as error:
            raise ValueError(f"{load.name}: {error}") from error


def _threads(load: Load) -> Measured:
    texts, found, lock = _texts(load), Measured(), threading.Lock()
    with Client(load.target, coalesce=load.coalesce) as client:
        client.embed(["first"])
        begun = time.perf_counter()

        def caller() -> None:
            while (started := time.perf_counter()) < begun + WARM_UP_S + load.seconds:
                with lock:
                    text = next(texts)
                client.embed([text], truncate=True)
                _add(found, started, begun)

        with ThreadPoolExecutor(load.callers) as threads:
            callers = [threads.submit(caller) for _ in range(load.callers)]
            time.sleep(WARM_UP_S)
            cpu_s = time.process_time()
            for one in callers:
                one.result()
    return _measured(found, time.process_time() - cpu_s, load)


async def _tasks(load: Load) -> Measured:
    texts, found = _texts(load), Measured()
    async with AsyncClient(load.target, coalesce=load.coalesce) as client:
        await client.embed(["first"])
        begun = time.perf_counter()

        async def caller() -> None:
            while (started := time.perf_counter()) < begun + WARM_UP_S + load.seconds:
                await client.embed([next(texts)], truncate=True)
                _add(found, started, begun)

        callers = [asyncio.ensure_future(caller()) for _ in range(load.callers)]
        await asyncio.sleep(WARM_UP_S)
        cpu_s = time.process_time()
        await asyncio.gather(*callers)
    return _measured(found, time.process_time() - cpu_s, load)


def _texts(load: Load) -> Iterator[str]:
    return itertools.cycle(read_texts(load.texts))


def _add(found: Measured, started: float, begun: float) -> None:
    if started >= begun + WARM_UP_S:
        found.latencies.append(time.perf_counter() - started)


def _measured(found: Measured, cpu_s: float, load: Load) -> Measured:
    found.texts_per_s = len(found.latencies) / load.seconds
    found.cpu_ms = 1e3 * cpu_s / max(1, len(found.latencies))
    return found


@command
def main() -> None:
    """Run the benchmark."""
    settings = parse(CoalescingSettings, "benchmarks.coalescing", __doc__)
    texts, engine = read_texts(settings.texts), Engine(embedding_model(settings.models))
    client, rounds, rates = Worker(_serve), dict[str, list[Measured]](), list[float]()
    with running_server(settings.models, ("--log-level=error",)) as server:
        loads = [
            Load(server.target, settings.texts, settings.seconds, callers, coalesce, threads)
            for callers in (settings.callers, 4, 1)
            for threads in (False, True)
            for coalesce in (True, False)
        ]
        for _ in range(settings.rounds):
            rates.append(engine.examples_per_s(texts, settings.seconds))
            for load in loads:
                client.send(load)
                rounds.setdefault(load.name, []).append(client.receive())
    client.close()
    _report(statistics.median(rates), rounds)


def _report(engine: float, rounds: dict[str, list[Measured]]) -> None:
    columns = f"{'texts/s':>9}{'of the engine':>15}{'CPU ms a call':>15}{'p50 ms':>8}{'p99 ms':>8}"
    print(f"{'':42}{columns}\n{'engine':42}{engine:9,.0f}{1:15.2f}")
    for name, found in rounds.items():
        rate = statistics.median(item.texts_per_s for item in found)
        cpu_ms = statistics.median(item.cpu_ms for item in found)
        latencies = [value for item in found for value in item.latencies]
        p50, p99 = (1e3 * percentile(latencies, fraction) for fraction in (0.5, 0.99))
        print(f"{name:42}{rate:9,.0f}{rate / engine:15.2f}{cpu_ms:15.3f}{p50:8.1f}{p99:8.1f}")


if __name__ == "__main__":
    main()
