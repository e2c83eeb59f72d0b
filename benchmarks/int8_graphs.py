"""Claim: our int8 graph is 1.2 to 1.7 times as fast as Optimum's, and three times as fast as a plain fp32 graph.

    python -m benchmarks.int8_graphs
    python -m benchmarks.int8_graphs --pooling mean
    python -m benchmarks.int8_graphs --family roberta
    python -m benchmarks.int8_graphs --checkpoint runs/vectors/checkpoint --texts sentences.txt

Embeddings of texts as long as sentences, with random weights unless a checkpoint is given. Ours in each engine that is
installed, and Optimum's graphs, plain and at O3, quantised as its documentation advises for CPUs with VNNI. Each uses
its best batch size. All run alternately in one process; the table shows medians.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import numpy as np
import onnx
from onnx import TensorProto
from onnxruntime.quantization import QuantType, quantize_dynamic

from benchmarks.samples import write_checkpoint
from export.autotune.search import autotune
from export.autotune.timing import race, run_all
from export.autotune.workload import Workload, typical_lengths
from export.calibrate import calibrate
from export.evaluation_set import ExportData
from export.graph import build_graph
from export.network import Network, Weights
from export.optimum_export.exporter import quiet
from export.session import graph_run
from export.source import read_source
from export.targets import targets_for
from export.variant import GraphPrecision
from tasks import AnyTask
from tasks.batching import RunModel
from tasks.bundle.machine import available_cpus
from tasks.bundle.manifest import Execution
from tasks.embedding import Pooling
from training.checkpoint.reader import load_model, read_config
from training.command_line.bounds import COUNT, check_numbers
from training.command_line.command import command, parse
from training.model.architectures import ARCHITECTURES
from training.model.heads import BertModel

CAPS = (128, 256, 512, 1024)
"""Padded tokens of a batch."""


@dataclass(frozen=True, kw_only=True)
class Int8Settings:
    """Time int8 graphs."""

    shape: tuple[int, int, int] = (6, 384, 12)
    """Layers, hidden size and heads of the network with random weights."""
    vocab_size: int = 30522
    family: Literal[tuple(ARCHITECTURES)] = "bert"  # type: ignore[valid-type]
    """Family of the network with random weights."""
    pooling: Pooling = "cls"
    """Pooling of the network with random weights."""
    checkpoint: Path | None = None
    """Checkpoint to time instead of random weights."""
    texts: Path | None = None
    """Texts to take lengths from and to calibrate on."""
    num_sequences: Annotated[int, COUNT] = 400
    rounds: Annotated[int, COUNT] = 9
    """Number of rounds; each runs every engine once."""

    def __post_init__(self) -> None:
        check_numbers(self)


def ours(
    settings: Int8Settings, model: BertModel, task: AnyTask, load: Workload
) -> Iterator[tuple[str, RunModel, int]]:
    """Yield our graphs: name, function, number of concurrent batches."""
    features = ExportData(texts=settings.texts).evaluation_set(task).features[:256]
    network, cores = Network(model.config, Weights.from_model(model), task), available_cpus()
    network = replace(network, ranges=calibrate(model, task, features, network.layers))
    for matmul in ("static int8", "dynamic int8", "fp32"):
        precision = GraphPrecision(matmul=matmul)
        for target in filter(lambda item: item.runs(precision), targets_for("cpu")):
            rival = target.with_bf16() if precision.is_int8 else target
            configuration, _ = autotune(network, precision, load, target=rival, num_cores=cores)
            run = graph_run(build_graph(network, precision, configuration.variant), execution=configuration.execution)
            in_engine = f", {target.provider}" * (target.engine != "onnxruntime")
            yield f"ours, {matmul}{in_engine}", run, cores // configuration.execution.num_threads


def theirs(checkpoint: Path, directory: Path) -> Iterator[tuple[str, RunModel, int]]:
    """Yield Optimum's graphs: name, function, number of concurrent batches."""
    import transformers

    if (family := read_config(checkpoint).get("model_type", "bert")) not in transformers.CONFIG_MAPPING:
        print(f"Optimum cannot export `{family}`: not measured")
        return
    cores = available_cpus()
    for name, path in optimum_graphs(checkpoint, directory).items():
        inputs = {item.name for item in onnx.load(path, load_external_data=False).graph.input}
        for suffix, execution, callers in (
            ("", Execution(), cores),
            (f", {cores} threads", Execution(num_threads=cores), 1),
        ):
            yield name + suffix, partial(_run_int64, graph_run(path, execution=execution), inputs), callers


def _run_int64(run: RunModel, names: set[str], arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return run({name: array.astype(np.int64) for name, array in arrays.items() if name in names})


def optimum_graphs(checkpoint: Path, directory: Path) -> dict[str, Path]:
    """Export a network with Optimum: plain and at O3, in fp32 and int8. Inputs are int64.

    With mean pooling, the plain int8 graph is the faster one in BERT, RoBERTa, DistilBERT, MPNet and ModernBERT.
    """
    import optimum.onnxruntime  # slow to import, and warns

    with quiet():
        exported = optimum.onnxruntime.ORTModelForFeatureExtraction.from_pretrained(checkpoint, export=True)
        exported.save_pretrained(directory / "plain")
        o3 = optimum.onnxruntime.AutoOptimizationConfig.O3()
        optimizer = optimum.onnxruntime.ORTOptimizer.from_pretrained(exported)
        optimizer.optimize(save_dir=directory / "o3", optimization_config=o3)
        graphs = {"Optimum": directory / "plain/model.onnx", "Optimum O3": directory / "o3/model_optimized.onnx"}
        for name, graph in list(graphs.items()):
            graphs[f"{name}, int8"] = graph.with_name("int8.onnx")
            quantize_dynamic(
                graph,
                graphs[f"{name}, int8"],
                op_types_to_quantize=["MatMul", "Attention"],
                per_channel=True,
                weight_type=QuantType.QInt8,
                # Shape inference cannot see through fused nodes, whose outputs are float.
                extra_options={"DefaultTensorType": TensorProto.FLOAT},
            )
    return graphs


def one_pass(run: RunModel, samples: Sequence[tuple[float, list[Any]]], callers: int, number: int) -> float:
    """Return the seconds for the sample of a round, scaled to the workload's tokens."""
    scale, batches = samples[number % len(samples)]
    return scale * run_all(run, batches, callers)


@command
def main() -> None:
    """Run the benchmark."""
    settings = parse(Int8Settings, "benchmarks.int8_graphs", __doc__)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        checkpoint = settings.checkpoint or directory / "checkpoint"
        if not settings.checkpoint:
            network = {"family": settings.family, "pooling": settings.pooling}
            write_checkpoint(checkpoint, settings.shape, settings.vocab_size, **network)
        task = read_source(checkpoint, task="embedding").task
        load = Workload(typical_lengths(settings.num_sequences, 512), task.tokenizer.vocab_size)
        if settings.texts:
            data = ExportData(texts=settings.texts, max_examples=settings.num_sequences)
            load = data.workload(task, data.evaluation_set(task))
        samples = {cap: load.samples(cap) for cap in CAPS}
        candidates = {
            (name, cap): partial(one_pass, run, samples[cap], callers)
            for graphs in (ours(settings, load_model(checkpoint, task.name), task, load), theirs(checkpoint, directory))
            for name, run, callers in graphs
            for cap in CAPS
        }
        seconds = {key: median(found) for key, found in race(candidates, settings.rounds).items()}
    print(f"{'':34s}{'batches of':>12s}{'sequences/s':>13s}{'tokens/s':>11s}{'time to ours':>14s}")
    own = min(seconds["ours, static int8", cap] for cap in CAPS)
    for name in dict.fromkeys(name for name, _ in seconds):
        value, cap = min((seconds[name, cap], cap) for cap in CAPS)
        rates = f"{len(load.lengths) / value:13,.0f}{load.num_tokens / value:11,.0f}"
        print(f"{name:34s}{cap:>12}{rates}{value / own:13.2f}x")


if __name__ == "__main__":
    main()
