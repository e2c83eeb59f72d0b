"""Memory of the GPU and of the process under batches of random lengths."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.settings import GpuSettings
from benchmarks.report import Table
from benchmarks.samples import random_network
from benchmarks.server_process import resident_mb
from benchmarks.worker import Worker
from export.graph import build_graph
from export.session import graph_run
from export.source import create_network
from export.targets import TARGETS, default_configuration
from export.variant import GraphPrecision
from tasks.batching import RunModel
from training.checkpoint.evaluation import torch_run

LONGEST = 512
ENGINES = ("ours", "PyTorch")
WARM_UP = 0.4
"""Fraction of the time after which the memory counts as warmed up."""


def memory(settings: GpuSettings) -> Iterator[Table]:
    """Yield a table: memory after the first batch, after warm-up and at the end, of our graph and of PyTorch."""
    rows = []
    for engine in ENGINES:
        worker = Worker(_serve, engine, settings)
        try:
            rows.append(worker.receive())
        finally:
            worker.close()
    yield Table(
        f"{settings.largest[0]}, batches of random lengths up to {LONGEST}",
        rows,
        "MiB; GPU: all that the process takes from it.",
    )


def _serve(connection: Connection, engine: str, settings: GpuSettings) -> None:
    before = _gpu_mb(settings)
    run, cap = _engine(engine, settings)
    rng, seconds = np.random.default_rng(0), 5 * settings.seconds
    samples: dict[str, tuple[float, float]] = {}
    run(_batch(rng, cap // LONGEST, LONGEST, settings))
    samples["first"] = _gpu_mb(settings) - before, resident_mb(os.getpid())
    started, count = time.monotonic(), 0
    while (passed := time.monotonic() - started) < seconds:
        length = int(rng.integers(4, LONGEST + 1))
        run(_batch(rng, int(rng.integers(1, cap // length + 1)), length, settings))
        count += 1
        if passed > WARM_UP * seconds:
            samples.setdefault("warm", (_gpu_mb(settings) - before, resident_mb(os.getpid())))
    samples["end"] = _gpu_mb(settings) - before, resident_mb(os.getpid())
    samples.setdefault("warm", samples["end"])
    row: dict[str, Any] = {"engine": engine, "batches": count}
    for where, column in ((0, "GPU"), (1, "host")):
        row |= {f"{column}, {name}": round(found[where]) for name, found in samples.items()}
    connection.send(row)


def _engine(engine: str, settings: GpuSettings) -> tuple[RunModel, int]:
    """Return a function that runs the largest network in fp16, and the largest batch in tokens."""
    model, task = random_network(settings.largest[1], settings.vocab_size, pooling="mean")
    default = default_configuration(TARGETS["cpu" if settings.is_dry else "cuda"])
    cap = max(LONGEST, default.execution.max_batch_tokens)
    if engine == "PyTorch":
        return torch_run(model if settings.is_dry else model.half(), task, settings.torch_device), cap
    precision = GraphPrecision(matmul="fp32" if settings.is_dry else "fp16")
    graph = build_graph(create_network(model, task), precision, default.variant)
    return graph_run(graph, execution=default.execution), cap


def _batch(rng: np.random.Generator, rows: int, length: int, settings: GpuSettings) -> dict[str, np.ndarray]:
    ids = rng.integers(5, settings.vocab_size, (rows, length), dtype=np.int32)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def _gpu_mb(settings: GpuSettings) -> float:
    if settings.is_dry:
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**20
