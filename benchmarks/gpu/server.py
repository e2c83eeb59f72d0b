"""The server under load on the GPU, compared with the engine in this process."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.embed_load import EmbedLoad, LoadClient, percentile
from benchmarks.engine import Engine
from benchmarks.gpu.settings import GpuSettings
from benchmarks.report import Table
from benchmarks.samples import sentences, write_checkpoint
from benchmarks.server_process import running_server
from benchmarks.worker import Worker
from export.evaluation_set import ExportData
from export.pipeline import ExportConfig, export_checkpoint

NUM_CLIENTS = 4
"""Client processes; one cannot make enough calls for a GPU."""


def server(settings: GpuSettings) -> Iterator[Table]:
    """Yield a table: texts/s of the engine and of the server, and the latency of short queries."""
    with tempfile.TemporaryDirectory() as folder:
        models, texts = Path(folder) / "models", Path(folder) / "texts.txt"
        lines = sentences(500 if settings.is_dry else 20_000, settings.vocab_size)
        texts.write_text("\n".join(lines), encoding="utf-8")
        write_checkpoint(Path(folder) / "checkpoint", *settings.smallest)
        config = ExportConfig(precision="fp32", target="cpu", tune=False)
        if not settings.is_dry:
            config = ExportConfig(precision="fp16", target="cuda", tune=False)
        export_checkpoint(Path(folder) / "checkpoint", models / "gpu/1", config, data=ExportData(texts=texts))
        rows = [_engine(models / "gpu/1", lines, settings), *_served(models, texts, settings)]
        for row in rows:
            row["of the engine"] = row["texts/s"] / rows[0]["texts/s"]
        yield Table(f"{next(iter(settings.shapes))}, sentences of 5 to 40 words", rows)


def _engine(model: Path, lines: list[str], settings: GpuSettings) -> dict[str, Any]:
    worker = Worker(_measure_engine, model, lines, settings.seconds)
    try:
        return _row("engine, 4,096 texts at a time", worker.receive(), [])
    finally:
        worker.close()


def _measure_engine(connection: Connection, model: Path, lines: list[str], seconds: float) -> None:
    connection.send(Engine(model).examples_per_s(lines, seconds, chunk=4096))


def _served(models: Path, texts: Path, settings: GpuSettings) -> Iterator[dict[str, Any]]:
    with running_server(models) as started, ExitStack() as stack:
        clients = [LoadClient() for _ in range(NUM_CLIENTS)]
        for client in clients:
            stack.callback(client.close)
        load = EmbedLoad(target=started.target, texts=texts, seconds=settings.seconds)
        query = replace(load, max_words=8, pause_s=0.02)
        loads = {
            "requests of 32, 64 in flight": (clients[:1], replace(load, num_texts=32, num_in_flight=64)),
            "the same of four clients": (clients, replace(load, num_texts=32, num_in_flight=16)),
            "requests of 512, 16 in flight": (clients[:1], replace(load, num_texts=512, num_in_flight=16)),
            "single texts, 64 in flight": (clients[:1], replace(load, num_in_flight=64)),
            "the same of four clients, 16 each": (clients, replace(load, num_in_flight=16)),
            "short queries, idle server": (clients[:1], query),
        }
        for name, (senders, each) in loads.items():
            yield _run(name, senders, each)
        bulk = replace(load, num_texts=32, num_in_flight=64, seconds=settings.seconds + 1)
        clients[1].start(bulk)
        yield _run("short queries with requests of 32", clients[:1], query)
        clients[1].result()


def _run(name: str, clients: list[LoadClient], load: EmbedLoad) -> dict[str, Any]:
    for client in clients:
        client.start(load)
    found = [client.result() for client in clients]
    return _row(name, sum(each.texts_per_s for each in found), [value for each in found for value in each.latencies])


def _row(name: str, texts_per_s: float, latencies: list[float]) -> dict[str, Any]:
    return {
        "load": name,
        "texts/s": texts_per_s,
        "median ms": 1e3 * statistics.median(latencies) if latencies else "",
        "p99 ms": 1e3 * percentile(latencies, 0.99) if latencies else "",
    }
