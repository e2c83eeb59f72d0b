"""Claim: our int8 graph is faster than Optimum's best recipe, and than the plain fp32 graph in any engine.

    python -m benchmarks.int8_graphs
    python -m benchmarks.int8_graphs --shape 12 768 12 --num-sequences 60
    python -m benchmarks.int8_graphs --family roberta
    python -m benchmarks.int8_graphs --checkpoint runs/vectors/checkpoint --texts sentences.txt

Embeddings of texts as long as sentences, with random weights unless a checkpoint is given. Each engine uses its best
batch size. All run in turns in one process; the table shows medians. OpenVINO is measured if installed: with Optimum's
graph quantised by ONNX Runtime, with floats in bf16 where the CPU supports it, and with our graph, beside ONNX Runtime.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

import numpy as np
import onnx
import torch

from benchmarks.optimum_graphs import is_known_to_optimum, optimum_graphs
from export.autotune.search import autotune
from export.autotune.timing import race, run_all
from export.autotune.workload import Workload, typical_lengths
from export.calibrate import calibrate
from export.evaluation_set import ExportData
from export.graph import build_graph
from export.network import Network, Weights
from export.optimum_export.quiet import quiet
from export.session import graph_run
from export.source import read_source
from export.targets import targets_for
from export.variant import GraphPrecision
from tasks import AnyTask
from tasks.batching import RunModel
from tasks.embedding import Embedding, EmbeddingSettings, Pooling
from tasks.features import INPUT_NAMES, collate
from tasks.machine import BF16, available_cpus, cpu_flags
from tasks.manifest import Execution
from tasks.providers import OPENVINO, has_openvino
from tasks.tokenizer import Tokenizer
from tasks.tokenizer_files import build_tokenizer
from training.bounds import COUNT, check_numbers
from training.checkpoint import create_model, load_model
from training.command import command, parse
from training.model.architectures import ARCHITECTURES
from training.model.heads import BertModel

CAPS = (128, 256, 512, 1024)
OPTIONS = {
    "deberta-v2": {
        **{"relative_attention": True, "pos_att_type": "p2c|c2p", "position_buckets": 256, "share_att_key": True},
        **{"norm_rel_ebd": "layer_norm", "position_biased_input": False, "max_position_embeddings": 512},
    }
}
"""Keys of `config.json` in public checkpoints of a family, where transformers has other defaults."""


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


def random_network(
    shape: tuple[int, int, int], vocab_size: int = 30522, family: str = "bert", pooling: Pooling = "cls"
) -> tuple[BertModel, Embedding]:
    """Return a random network for embeddings and its task.

    Args:
        shape: layers, hidden size and heads.
        family: key of `ARCHITECTURES`.
    """
    layers, hidden, heads = shape
    words = [f"w{number}" for number in range(vocab_size - 5)]
    tokenizer = Tokenizer(build_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    torch.manual_seed(0)
    architecture = ARCHITECTURES[family]
    sizes = {
        "vocab_size": vocab_size,
        "pad_token_id": tokenizer.pad_id,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "max_position_embeddings": 514,
    }
    named = {architecture.config_keys.get(key, key): size for key, size in sizes.items()}
    config = architecture.read_config(named | OPTIONS.get(family, {}))
    settings = EmbeddingSettings(max_seq_length=512, pooling=pooling)
    return create_model("embedding", config).eval(), Embedding(tokenizer, settings)


def with_ranges(model: BertModel, task: AnyTask, texts: Path | None = None) -> Network:
    """Return the network with calibrated ranges."""
    evaluation_set = ExportData(texts=texts).evaluation_set(task)
    network = Network(model.config, Weights.from_model(model), task)
    return replace(network, ranges=calibrate(model, task, evaluation_set.features[:256], network.layers))


def engines(
    settings: Int8Settings, model: BertModel, task: AnyTask, load: Workload, directory: Path
) -> Iterator[tuple[str, RunModel, int]]:
    """Yield engines: name, function, number of concurrent batches."""
    cores = available_cpus()
    network = with_ranges(model, task, settings.texts)
    for matmul in ("static int8", "dynamic int8", "fp32"):
        precision = GraphPrecision(matmul=matmul)
        for target in filter(lambda item: item.runs(precision), targets_for("cpu")):
            rival = target.with_bf16() if precision.is_int8 else target
            configuration, _ = autotune(network, precision, load, target=rival, num_cores=cores)
            graph = build_graph(network, precision, configuration.variant)
            run = graph_run(graph, execution=configuration.execution)
            in_engine = ", OpenVINO" * (target.engine == "openvino")
            yield f"ours, {matmul}{in_engine}", run, cores // configuration.execution.num_threads
    if not is_known_to_optimum(model.config.model_type):
        print(f"Optimum cannot export `{model.config.model_type}`: not measured")
        return
    peers = optimum_graphs(model, task.name, directory, int8=True)
    for name, path in peers.items():
        inputs = _inputs(path)
        yield name, _with_int64(graph_run(path), inputs), cores
        on_all = graph_run(path, execution=Execution(num_threads=cores))
        yield f"{name}, {cores} threads", _with_int64(on_all, inputs), 1
    if not has_openvino():
        print("openvino is not installed (pip install openvino -c constraints.txt): not measured")
        return
    features = ExportData(texts=settings.texts).evaluation_set(task).features[:64]
    quantised = _static(peers["Optimum"], features, task, directory)
    execution = Execution(provider=OPENVINO, floats="bf16" if BF16 & cpu_flags() else "fp32")
    yield "OpenVINO, static int8", _with_int64(graph_run(quantised, execution=execution), _inputs(quantised)), cores


def _with_int64(run: RunModel, names: Collection[str] = INPUT_NAMES) -> RunModel:
    return lambda arrays: run({name: array.astype(np.int64) for name, array in arrays.items() if name in names})


def _inputs(graph: Path) -> list[str]:
    """Return the names of a graph's inputs: some families have no token types."""
    return [item.name for item in onnx.load(graph, load_external_data=False).graph.input]


def _static(graph: Path, features: list[Any], task: AnyTask, directory: Path) -> Path:
    """Quantise the matrix products of a graph to QDQ, with the full range of activations."""
    from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = iter([collate([item], pad_id=task.tokenizer.pad_id) for item in features])

        def get_next(self) -> dict[str, np.ndarray] | None:
            batch = next(self.batches, None)
            return batch and {name: array.astype(np.int64) for name, array in batch.items()}

    target = directory / "static.onnx"
    with quiet():
        quantize_static(
            graph,
            target,
            Reader(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            calibrate_method=CalibrationMethod.MinMax,
        )
    return target


def one_pass(run: RunModel, samples: Sequence[tuple[float, list[Any]]], callers: int, number: int) -> float:
    """Return the seconds for the sample of a round, scaled to the workload's tokens."""
    scale, batches = samples[number % len(samples)]
    return scale * run_all(run, batches, callers)


def workload(settings: Int8Settings, task: AnyTask) -> Workload:
    """Return the sequences to time."""
    if settings.texts:
        data = ExportData(texts=settings.texts, max_examples=settings.num_sequences)
        return data.workload(task, data.evaluation_set(task))
    return Workload(typical_lengths(settings.num_sequences, 512), task.tokenizer.vocab_size)


@command
def main() -> None:
    """Run the benchmark."""
    settings = parse(Int8Settings, "benchmarks.int8_graphs", __doc__)
    if settings.checkpoint:
        task = read_source(settings.checkpoint, task="embedding").task
        model = load_model(settings.checkpoint, task.name)
    else:
        model, task = random_network(settings.shape, settings.vocab_size, settings.family, settings.pooling)
    load = workload(settings, task)
    with tempfile.TemporaryDirectory() as directory:
        samples = {cap: load.samples(cap) for cap in CAPS}
        candidates = {
            f"{name}|{cap}": partial(one_pass, run, samples[cap], callers)
            for name, run, callers in engines(settings, model, task, load, Path(directory))
            for cap in CAPS
        }
        seconds = {name: median(found) for name, found in race(candidates, settings.rounds).items()}
    best: dict[str, tuple[float, str]] = {}
    for key, value in seconds.items():
        name, _, cap = key.partition("|")
        best[name] = min(best.get(name, (value, cap)), (value, cap))
    own = best["ours, static int8"][0]
    print(f"{'':34s}{'batches of':>12s}{'sequences/s':>13s}{'tokens/s':>11s}{'time to ours':>14s}")
    for name, (value, cap) in best.items():
        rates = f"{len(load.lengths) / value:13,.0f}{load.num_tokens / value:11,.0f}"
        print(f"{name:34s}{cap:>12s}{rates}{value / own:13.2f}x")


if __name__ == "__main__":
    main()
