"""Race of our graphs on execution providers with PyTorch, and their difference from it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.settings import GpuSettings
from benchmarks.int8_graphs import random_network, with_ranges
from benchmarks.report import Table
from benchmarks.worker import Worker
from export.autotune.timing import race, run_all
from export.autotune.workload import Workload, typical_lengths
from export.families import create_network
from export.graph import build_graph
from export.session import graph_run, is_available
from export.targets import TARGETS, default_configuration
from export.variant import Configuration, GraphPrecision
from tasks import AnyTask
from tasks.batching import RunModel
from tasks.providers import TENSORRT
from training.model.heads import BertModel
from training.model.vectors import with_task_outputs

CAPS = (4096, 16384, 65536)
"""Padded tokens of a batch."""
DRY_CAPS = (256,)
REFERENCE = "PyTorch, fp32"
MULTIPLE = 8
"""PyTorch's attention in fp16 is slow at lengths that are no multiple of this."""


def graphs(settings: GpuSettings) -> Iterator[Table]:
    """Yield a table for each network and length of texts."""
    for name, shape in settings.shapes.items():
        worker = Worker(_serve, name, shape, settings)
        try:
            while (table := worker.receive()) is not None:
                yield table
        finally:
            worker.close()


def _serve(connection: Connection, name: str, shape: tuple[int, int, int], settings: GpuSettings) -> None:
    model, task = random_network(shape, settings.vocab_size, pooling="mean")
    runs, notes = dict[str, RunModel](), []
    for engine, run in _engines(model, task, settings):
        if isinstance(run, str):
            notes.append(f"{engine}: {run}.")
        else:
            runs[engine] = run
    for kind, load in _workloads(settings).items():
        rows = list(_race(runs, load, settings))
        connection.send(Table(f"{name}, mean pooling, {kind}", rows, " ".join(notes)))
    connection.send(None)


def _workloads(settings: GpuSettings) -> dict[str, Workload]:
    lengths = np.random.default_rng(0).integers(256, 513, 4 if settings.is_dry else 500)
    sentences = typical_lengths(32 if settings.is_dry else 4000, 512)
    return {
        "sentences": Workload(sentences, settings.vocab_size),
        "passages of 256 to 512 tokens": Workload(tuple(map(int, lengths)), settings.vocab_size),
    }


def _engines(model: BertModel, task: AnyTask, settings: GpuSettings) -> Iterator[tuple[str, RunModel | str]]:
    """Yield engines by name, each as its function, or as the reason why it is missing."""
    device = settings.torch_device
    yield REFERENCE, _pytorch(copy.deepcopy(model), task, device)
    if settings.is_dry:
        yield "ONNX Runtime, fp32", _ort(model, task, "fp32", default_configuration())
        return
    yield "PyTorch, fp16", _pytorch(copy.deepcopy(model).half(), task, device)
    yield "PyTorch, fp16, compiled", _pytorch(copy.deepcopy(model).half(), task, device, compiled=True)
    default = default_configuration(TARGETS["cuda"])
    yield "ours, CUDA, fp32", _ort(model, task, "fp32", default)
    yield "ours, CUDA, fp16", _ort(model, task, "fp16", default)
    fused = default.with_value("attention", "fused-QKV MultiHeadAttention")
    yield "ours, CUDA, fp16, MultiHeadAttention", _ort(model, task, "fp16", fused)
    if not is_available(TENSORRT):
        yield "TensorRT", "not installed, so untried; CUDA's provider has no int8 products"
        return
    tensorrt = default.with_value("provider", TENSORRT)
    yield "ours, TensorRT, fp16", _ort(model, task, "fp16", tensorrt)
    yield "ours, TensorRT, int8", _ort(model, task, "static int8", tensorrt)


def _pytorch(model: BertModel, task: AnyTask, device: torch.device, *, compiled: bool = False) -> RunModel:
    """Return a function that runs the network, at lengths that its fused attention is made for."""
    network = with_task_outputs(model, task.settings).eval().to(device)
    if compiled:
        network.compile(dynamic=True)

    @torch.inference_mode()
    def run(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        missing = -arrays["input_ids"].shape[1] % MULTIPLE
        padded = {name: np.pad(array, ((0, 0), (0, missing))) for name, array in arrays.items()}
        inputs = {name: torch.from_numpy(array).to(device) for name, array in padded.items()}
        return {name: output.float().cpu().numpy() for name, output in network(**inputs).items()}

    return run


def _ort(model: BertModel, task: AnyTask, matmul: Any, configuration: Configuration) -> RunModel:
    is_int8 = matmul.endswith("int8")
    network = with_ranges(model, task) if is_int8 else create_network(model, task)
    graph = build_graph(network, GraphPrecision(matmul=matmul), configuration.variant)
    return graph_run(graph, execution=configuration.execution)


def _seconds(run: RunModel, batches: list[dict[str, np.ndarray]], number: int) -> float:
    """Return the seconds of the batches, which are the same in every round."""
    return run_all(run, batches, 1)


def _race(runs: dict[str, RunModel], load: Workload, settings: GpuSettings) -> Iterator[dict[str, Any]]:
    """Yield a row for each engine, at its best batch size."""
    caps = DRY_CAPS if settings.is_dry else CAPS
    batches = {cap: load.batches(cap) for cap in caps}
    differences = {engine: _difference(run, runs[REFERENCE], batches[caps[0]][::4]) for engine, run in runs.items()}
    candidates = {(engine, cap): partial(_seconds, run, batches[cap]) for engine, run in runs.items() for cap in caps}
    for run_once in candidates.values():
        run_once(0)  # compiles, and takes memory
    seconds = {key: median(found) for key, found in race(candidates, settings.rounds).items()}
    fastest = min(value for (engine, _), value in seconds.items() if engine.startswith("PyTorch"))
    for engine in runs:
        cap = min(caps, key=lambda cap, engine=engine: seconds[engine, cap])  # type: ignore[misc]
        taken = seconds[engine, cap]
        yield {
            "engine": engine,
            "tokens a batch": cap,
            "texts/s": len(load.lengths) / taken,
            "tokens/s": load.num_tokens / taken,
            "times PyTorch's fastest": fastest / taken,
            **differences[engine],
        }


def _difference(run: RunModel, reference: RunModel, batches: list[dict[str, np.ndarray]]) -> dict[str, float]:
    """Return the largest difference of vectors from the reference, and their lowest cosine."""
    largest, lowest = 0.0, 1.0
    for batch in batches:
        found, expected = (next(iter(each(batch).values())).astype(np.float64) for each in (run, reference))
        norms = np.linalg.norm(found, axis=-1) * np.linalg.norm(expected, axis=-1)
        largest = max(largest, float(np.abs(found - expected).max()))
        lowest = min(lowest, float(((found * expected).sum(-1) / norms).min()))
    return {"largest difference": largest, "lowest cosine": lowest}
