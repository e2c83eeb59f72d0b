"""Claim: short queries are answered in time while bulk work saturates the server, at 4 to 5 times the idle latency.

    python -m benchmarks.fairness models
    python -m benchmarks.fairness models --callers 256 --priority bulk

One caller sends ten short queries a second. Bulk callers keep requests in flight: eight requests of 32 sentences; eight
of 64 long texts, as `bertline embed` sends them; then one on each of many connections. The latency of the queries is
compared with that of an idle server, and the bulk throughput with that without queries. Clients and server share the
cores of this machine.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from benchmarks.harness import EmbedLoad, LoadClient, percentile, random_texts, running_server
from training.command_line.bounds import COUNT, POSITIVE, check_numbers
from training.command_line.command import command, parse


@dataclass(frozen=True, kw_only=True)
class FairnessSettings:
    """Command line."""

    models: Annotated[Path, tyro.conf.Positional]
    """Directory with one model of task embedding."""
    callers: tuple[int, ...] = (32, 256)
    """Numbers of bulk callers; each has one connection and one request of 16 long texts in flight."""
    words: Annotated[int, COUNT] = 240
    """Words of a long text."""
    deadlines_s: tuple[float, ...] = (0.05, 0.25, 1.0, 0.0)
    """Deadlines of queries in seconds; 0 for none."""
    priority: Literal["interactive", "bulk"] = "interactive"
    """Priority of the bulk callers with one connection each."""
    seconds: Annotated[float, POSITIVE] = 8.0
    """Seconds of each measurement."""
    flags: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Server flag; repeat the option for several."""

    def __post_init__(self) -> None:
        check_numbers(self)


def times(seconds: Sequence[float], idle_s: float) -> str:
    """Format the median and the 99th percentile of latencies."""
    median, late = (percentile(seconds, fraction) for fraction in (0.5, 0.99))
    return f"p50 {1e3 * median:.1f} ms, p99 {1e3 * late:.1f} ms, {late / idle_s:.1f} times the idle median"


def measure(name: str, bulk: EmbedLoad, query: EmbedLoad, settings: FairnessSettings, idle_s: float) -> None:
    """Print the latency of queries under one bulk load, and the throughput that the bulk load keeps."""
    with LoadClient() as bulk_client, LoadClient() as client:
        alone = bulk_client.run(bulk).texts_per_s
        bulk_client.send(replace(bulk, seconds=1 + len(settings.deadlines_s) * settings.seconds))
        time.sleep(0.5)
        print(name)
        for deadline_s in settings.deadlines_s:
            found = client.run(replace(query, timeout_s=deadline_s or None))
            print(
                f"  deadline {deadline_s or 'none'}: {dict(found.codes)}, {times(found.latencies, idle_s)}", flush=True
            )
        together = bulk_client.receive().texts_per_s
        print(f"  {alone:,.1f} texts/s without queries, {together:,.1f} with ({together / alone:.2f})", flush=True)


@command
def main() -> None:
    """Run the benchmark."""
    settings = parse(FairnessSettings, "benchmarks.fairness", __doc__)
    with tempfile.TemporaryDirectory() as name, running_server(settings.models, settings.flags) as server:
        short, sentences, long = (Path(name, f"{count}.txt") for count in (4, 20, settings.words))
        for path in (short, sentences, long):
            path.write_text("\n".join(random_texts(64, int(path.stem), int(path.stem))), encoding="utf-8")
        query = EmbedLoad(target=server.target, texts=short, seconds=settings.seconds, calls_per_s=10.0)
        with LoadClient() as client:
            idle = client.run(query).latencies
        idle_s = percentile(idle, 0.5)
        print(f"idle server: {times(idle, idle_s)}")
        load = EmbedLoad(target=server.target, texts=long, seconds=settings.seconds, num_texts=64, num_in_flight=8)
        kinds = {
            "8 requests of 32 sentences": replace(load, texts=sentences, num_texts=32),
            "8 requests of 64 long texts, bulk": replace(load, priority="bulk"),
        }
        many = replace(load, num_texts=16, num_in_flight=1, pause_s=0.05, priority=settings.priority)
        for count in settings.callers:
            name = f"{count} connections with a request of 16 long texts, {settings.priority}"
            kinds[name] = replace(many, connections=count)
        for kind, bulk in kinds.items():
            measure(kind, bulk, query, settings, idle_s)


if __name__ == "__main__":
    main()
