"""Claim: our int8 graph is faster than Optimum's best recipe and than the plain graph in floats, whoever runs those.

    python -m benchmarks.int8_graphs
    python -m benchmarks.int8_graphs --shape 12 768 12 --num-sequences 60
    python -m benchmarks.int8_graphs --checkpoint runs/vectors/checkpoint --texts sentences.txt

Embeddings of texts as long as sentences, random weights unless there is a checkpoint; each engine in its best batching;
all in turns in one process, medians. OpenVINO (`pip install openvino -c constraints.txt`) takes part where it is
installed, with the graph that ONNX Runtime's quantizer makes of Optimum's, and with ours of ONNX's own operators; its
floats are then bf16 where the CPU has it, unless told otherwise.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch

from benchmarks.optimum_graphs import optimum_graphs
from export._quiet import quiet
from export.autotune.search import tune
from export.autotune.workload import Workload, race, run_all, typical_lengths
from export.calibrate import calibrate
from export.data import Data
from export.graph import build_graph
from export.network import Network, Weights
from export.session import ort_run
from export.source import read_source
from export.variant import Form, Numbers
from tasks import AnyTask
from tasks.batching import RunModel
from tasks.embedding import Embedding, EmbeddingSettings
from tasks.features import collate
from tasks.machine import available_cpus
from tasks.manifest import Execution
from tasks.tokenizer import Tokenizer
from tasks.tokenizer_files import build_tokenizer
from training.bounds import COUNT, check_numbers
from training.checkpoint import create_model
from training.command import command, parse
from training.model.encoder import EncoderConfig
from training.model.heads import BertModel

CAPS = (128, 256, 512, 1024)


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Time int8 graphs."""

    shape: tuple[int, int, int] = (6, 384, 12)
    """Layers, hidden size and heads of a network with random weights."""
    vocab_size: int = 30522
    checkpoint: Path | None = None
    """Time the embeddings of this instead."""
    texts: Path | None = None
    """Texts whose lengths to take, and with which to calibrate."""
    num_sequences: Annotated[int, COUNT] = 400
    rounds: Annotated[int, COUNT] = 9
    """Of all engines, in turns."""

    def __post_init__(self) -> None:
        check_numbers(self)


def random_network(shape: tuple[int, int, int], vocab_size: int = 30522) -> tuple[BertModel, Embedding]:
    """A network of some layers, hidden size and heads that embeds, and its task."""
    layers, hidden, heads = shape
    words = [f"w{number}" for number in range(vocab_size - 5)]
    tokenizer = Tokenizer(build_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
    )
    return create_model("embedding", config).eval(), Embedding(tokenizer, EmbeddingSettings(max_seq_length=512))


def with_ranges(model: BertModel, task: AnyTask, texts: Path | None = None) -> Network:
    """What graphs are made of."""
    evidence = Data(texts=texts).evidence(task)
    network = Network(model.config, Weights.of(model), task)
    return replace(network, ranges=calibrate(model, task, evidence.features[:256], network.layers))


def engines(
    arguments: Arguments, model: BertModel, task: AnyTask, load: Workload, directory: Path
) -> Iterator[tuple[str, RunModel, int]]:
    """Ways to run the network: name, function, batches at the same time."""
    cores = available_cpus()
    network = with_ranges(model, task, arguments.texts)
    for products in ("static int8", "dynamic int8", "fp32"):
        choice, _ = tune(network, Numbers(products=products), load, num_cores=cores)
        graph = build_graph(network, Numbers(products=products), choice.form)
        run = ort_run(graph, execution=choice.execution)
        yield f"ours, {products}", run, cores // choice.execution.num_threads
    peers = optimum_graphs(model, task.name, directory, int8=True)
    for name, path in peers.items():
        yield name, _with_int64(ort_run(path)), cores
        yield f"{name}, {cores} threads", _with_int64(ort_run(path, execution=Execution(num_threads=cores))), 1
    if not find_spec("openvino"):
        print("openvino is not installed (pip install openvino -c constraints.txt): it takes no part")
        return
    features = Data(texts=arguments.texts).evidence(task).features[:64]
    quantised = _static(peers["Optimum"], features, task, directory).read_bytes()
    yield "OpenVINO, static int8", _with_int64(openvino_run(quantised, cores)), cores
    for form in (Form(standard=True), Form(standard=True, attention="products")):
        graph = build_graph(network, Numbers(products="static int8"), form)
        yield f"OpenVINO, our QDQ, {form.attention}", openvino_run(graph.whole().SerializeToString(), cores), cores


def _with_int64(run: RunModel) -> RunModel:
    return lambda arrays: run({name: array.astype(np.int64) for name, array in arrays.items()})


def openvino_run(graph: bytes, cores: int, floats: str | None = None) -> RunModel:
    """OpenVINO, a stream a core.

    Args:
        floats: their type; None for what it takes by itself.
    """
    import openvino

    core = openvino.Core()
    settings = {"NUM_STREAMS": str(cores), "INFERENCE_NUM_THREADS": str(cores)}
    model = core.compile_model(
        core.read_model(graph), "CPU", settings | ({"INFERENCE_PRECISION_HINT": floats} if floats else {})
    )
    requests = threading.local()

    def run(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not hasattr(requests, "own"):
            requests.own = model.create_infer_request()
        return {"vectors": next(iter(requests.own.infer(arrays).values()))}

    return run


def _static(graph: Path, features: list[Any], task: AnyTask, directory: Path) -> Path:
    """The graph with the products in QDQ form, the ranges of activations from least to most."""
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


def workload(arguments: Arguments, task: AnyTask) -> Workload:
    """Sequences to run."""
    if arguments.texts:
        data = Data(texts=arguments.texts, max_examples=arguments.num_sequences)
        return data.workload(task, data.evidence(task))
    return Workload(typical_lengths(arguments.num_sequences, 512), task.tokenizer.vocab_size)


@command
def main() -> None:
    """Command line."""
    arguments = parse(Arguments, "benchmarks.int8_graphs", __doc__)
    if arguments.checkpoint:
        source = read_source(arguments.checkpoint, task="embedding")
        model, task = source.load_model(), source.task
    else:
        model, task = random_network(arguments.shape, arguments.vocab_size)
    load = workload(arguments, task)
    with tempfile.TemporaryDirectory() as directory:
        candidates = {
            f"{name}|{cap}": partial(run_all, run, load.batches(cap), callers)
            for name, run, callers in engines(arguments, model, task, load, Path(directory))
            for cap in CAPS
        }
        seconds = {name: median(found) for name, found in race(candidates, arguments.rounds).items()}
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
