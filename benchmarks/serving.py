"""Measure the server: throughput, mixed load, overload, memory and start, against the engine or an idle server.

    python -m benchmarks.serving throughput models --texts sentences.txt
    python -m benchmarks.serving mixed models --texts sentences.txt

Client, server and engine share the cores of this machine. Nothing else should be busy.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from benchmarks.embed_load import EmbedLoad, LoadClient, LoadResult, percentile, read_texts
from benchmarks.engine import Engine
from benchmarks.memory import MemoryCheck, plot
from benchmarks.server_process import embedding_model, running_server
from training.bounds import COUNT, POSITIVE, check_numbers
from training.command import command, parse


@dataclass(frozen=True, kw_only=True)
class ServingSettings:
    """Command line."""

    measurement: Annotated[Literal["throughput", "mixed", "overload", "memory", "start"], tyro.conf.Positional]
    models: Annotated[Path, tyro.conf.Positional]
    """Directory with one model of task embedding."""
    texts: Path
    """File with one text per line."""
    seconds: Annotated[float, POSITIVE] = 5.0
    """Seconds of each measurement; overload takes twelve times as long."""
    rounds: Annotated[int, COUNT] = 3
    """Rounds of all measurements."""
    flags: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Server flag; repeat for several: `--flags=--poll-s=0 --flags=--max-queue-s=2`."""
    memory_s: Annotated[float, POSITIVE] = 600.0
    """Seconds of the memory check."""
    warm_up_s: Annotated[float, POSITIVE] = 90.0
    """Seconds of warm-up before the memory check."""
    control_s: Annotated[float, POSITIVE] = 120.0
    """Seconds of the memory check of a server that leaks memory, which the check has to find."""
    plot: Path | None = None
    """PNG file for a plot of the memory."""

    def __post_init__(self) -> None:
        check_numbers(self)


def throughput(settings: ServingSettings) -> None:
    """Compare bulk requests and single texts with the engine."""
    texts, engine = read_texts(settings.texts), Engine(embedding_model(settings.models))
    client = LoadClient()
    with running_server(settings.models, settings.flags) as server:
        load = EmbedLoad(target=server.target, texts=settings.texts, seconds=settings.seconds)
        bulk, single = replace(load, num_texts=32, num_in_flight=8), replace(load, num_in_flight=64)
        rounds = [
            (
                engine.examples_per_s(texts, settings.seconds),
                client.run(bulk).texts_per_s,
                client.run(single).texts_per_s,
            )
            for _ in range(settings.rounds)
        ]
    client.close()
    names = ("engine", "requests of 32, 8 in flight", "single texts, 64 in flight")
    medians = [statistics.median(values) for values in zip(*rounds, strict=True)]
    for name, value in zip(names, medians, strict=True):
        print(f"{name:30} {value:8,.0f} texts/s  {value / medians[0]:.2f}")


def mixed(settings: ServingSettings) -> None:
    """Measure short queries without and with a client that saturates the server, and what that client loses."""
    bulk_client, client = LoadClient(), LoadClient()
    with running_server(settings.models, settings.flags) as server:
        load = EmbedLoad(target=server.target, texts=settings.texts, seconds=settings.seconds)
        query = replace(load, max_words=8, pause_s=0.02)
        bulk = replace(load, num_texts=32, num_in_flight=8)
        idle, loaded, alone, beside = [], [], [], []
        for _ in range(settings.rounds):
            idle += client.run(query).latencies
            alone.append(bulk_client.run(bulk).texts_per_s)
            loaded += _beside(bulk_client, bulk, client, query).latencies
            beside.append(_beside(client, query, bulk_client, bulk).texts_per_s)
    for item in (bulk_client, client):
        item.close()
    median = percentile(idle, 0.5)
    print(f"short queries, idle server: median {1e3 * median:.1f} ms, p99 {1e3 * percentile(idle, 0.99):.1f} ms")
    for fraction in (0.5, 0.9, 0.99):
        value = percentile(loaded, fraction)
        print(f"  beside bulk: p{100 * fraction:.0f} {1e3 * value:.1f} ms, {value / median:.1f} times the idle median")
    alone_s, beside_s = statistics.median(alone), statistics.median(beside)
    print(f"bulk: {alone_s:,.0f} texts/s alone, {beside_s:,.0f} beside queries ({beside_s / alone_s:.2f})")


def _beside(other_client: LoadClient, other: EmbedLoad, client: LoadClient, load: EmbedLoad) -> LoadResult:
    """Run a load while another load runs. The other one starts half a second earlier and ends later."""
    other_client.start(replace(other, seconds=load.seconds + 1))
    time.sleep(0.5)
    found = client.run(load)
    other_client.result()
    return found


def overload(settings: ServingSettings) -> None:
    """Send three times the server's capacity, each call with a deadline. Capacity is measured before and after."""
    client = LoadClient()
    with running_server(settings.models, settings.flags) as server:
        load = EmbedLoad(target=server.target, texts=settings.texts, seconds=settings.seconds, num_texts=32)
        full = replace(load, num_in_flight=8)
        client.run(full)  # the server learns what a token costs
        capacity = client.run(full).texts_per_s
        before = server.resident_mb
        found = client.run(
            replace(load, calls_per_s=3 * capacity / load.num_texts, timeout_s=1.0, seconds=12 * settings.seconds)
        )
        after = server.resident_mb
        capacities = capacity, client.run(full).texts_per_s
    client.close()
    capacity = statistics.mean(capacities)
    print(f"capacity {capacities[0]:,.0f} texts/s before, {capacities[1]:,.0f} after")
    print(f"goodput {found.texts_per_s:,.0f}, {found.texts_per_s / capacity:.2f} of their mean; {dict(found.codes)}")
    for name, times in (("answers", found.latencies), ("refusals", found.refusals)):
        median, late = percentile(times, 0.5), percentile(times, 0.99)
        print(f"{name}: median {1e3 * median:.1f} ms, p99 {1e3 * late:.1f}, slowest {1e3 * max(times, default=0):.1f}")
    print(f"memory {before:.0f} -> {after:.0f} MB")


def start(settings: ServingSettings) -> None:
    """Measure the time from the command to the ready line."""
    times = []
    for _ in range(settings.rounds):
        with running_server(settings.models, settings.flags) as server:
            times.append(server.ready_s)
    print(f"ready after {statistics.median(times):.2f} s (median of {len(times)})")


def memory(settings: ServingSettings) -> None:
    """Check the memory of the server, and of one with a leak."""
    check = MemoryCheck(
        models=settings.models, texts=settings.texts, warm_up_s=settings.warm_up_s, flags=settings.flags
    )
    growths = []
    for module, seconds in (("serving", settings.memory_s), ("benchmarks.growing_server", settings.control_s)):
        growths.append(check.run(module, seconds))
        print(growths[-1], flush=True)
    if settings.plot:
        plot(growths, settings.plot)
    if [growth.is_flagged for growth in growths] != [False, True]:
        raise SystemExit("the server's memory grows, or the check does not find the leak of the control")


BENCHMARKS: dict[str, Callable[[ServingSettings], None]] = {
    "throughput": throughput,
    "mixed": mixed,
    "overload": overload,
    "memory": memory,
    "start": start,
}


@command
def main() -> None:
    """Run the benchmark."""
    settings = parse(ServingSettings, "benchmarks.serving", __doc__)
    BENCHMARKS[settings.measurement](settings)


if __name__ == "__main__":
    main()
