"""Measure memory, server and pretraining on a GPU, in at most 20 minutes, without network.

    python -m benchmarks.gpu
    python -m benchmarks.gpu server resume --out build/gpu-server
    python -m benchmarks.gpu --device cpu --seconds 0.2 --num-steps 20

Writes `build/gpu.json` and `build/gpu.md` after each table. The ONNX Runtime for GPUs takes the place of the other one:
`pip uninstall onnxruntime; pip install --group serving-gpu -c constraints.txt`. A part that fails does not stop the
others; the exit code is then 1. With `--device cpu`, tiny networks show that all parts run.
"""

from __future__ import annotations

import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import onnxruntime
import torch
import tyro
from safetensors.torch import load_file

from benchmarks.engine import engine_rate
from benchmarks.harness import EmbedLoad, LoadClient, Worker, percentile, resident_mb, running_server
from benchmarks.report import Table, run_parts
from benchmarks.samples import TINY, TINY_VOCAB_SIZE, random_network, sentences, write_checkpoint, write_documents
from export.evaluation_set import ExportData
from export.graph import build_graph
from export.pipeline import ExportConfig, export_checkpoint
from export.session import graph_run
from export.source import create_network
from export.targets import TARGETS, default_configuration
from export.variant import GraphPrecision
from tasks.batching import RunModel
from tasks.bundle.machine import available_cpus
from training.checkpoint.evaluation import torch_run
from training.command_line.bounds import COUNT, POSITIVE, check_numbers
from training.command_line.command import command, parse
from training.loop.run_directory import read_metrics

PartName = Literal["memory", "server", "pretraining", "resume"]
Shape = tuple[int, int, int]
"""Layers, hidden size and heads."""
BATCH_TOKENS = 32_768
"""Tokens of a batch in training."""
LONGEST = 512
WARM_UP = 0.4
"""Fraction of the time after which the memory counts as warmed up."""
NUM_CLIENTS = 4
"""Client processes; one cannot make enough calls for a GPU."""
RESUME_STEPS, INTERRUPT_AFTER = 60, 20


@dataclass(frozen=True, kw_only=True)
class GpuSettings:
    """Measure memory, server and pretraining on a GPU."""

    parts: Annotated[tuple[PartName, ...], tyro.conf.Positional] = get_args(PartName)
    """Parts to run, in this order."""
    out: Path = Path("build/gpu")
    """Path of the report, without `.json` and `.md`."""
    device: Literal["cuda", "cpu"] = "cuda"
    """cpu: a dry run with tiny networks, whose figures mean nothing."""
    seconds: Annotated[float, POSITIVE] = 4.0
    """Seconds of each load of the server; of random lengths, five times as long."""
    lengths: tuple[Literal[128, 512], ...] = (128, 512)
    """Lengths of sequences in pretraining."""
    num_steps: Annotated[int, COUNT] = 100
    """Steps of each pretraining."""

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("PyTorch finds no GPU; give --device cpu for a dry run")

    @property
    def is_dry(self) -> bool:
        """True without a GPU."""
        return self.device == "cpu"

    @property
    def batches(self) -> dict[int, int]:
        """Length of the sequences to train on -> sequences in a batch."""
        return {32: 4} if self.is_dry else {length: BATCH_TOKENS // length for length in self.lengths}

    @property
    def largest(self) -> tuple[str, Shape]:
        """Name and shape of the network of the memory and of pretraining."""
        return ("tiny (L2 H32)", TINY) if self.is_dry else ("BERT-base (L12 H768)", (12, 768, 12))

    @property
    def smallest(self) -> tuple[str, Shape]:
        """Name and shape of the network of the server."""
        return ("tiny (L2 H32)", TINY) if self.is_dry else ("MiniLM (L6 H384)", (6, 384, 12))

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary, BERT's on a GPU."""
        return TINY_VOCAB_SIZE if self.is_dry else 30_522


def memory(settings: GpuSettings) -> Iterator[Table]:
    """Yield a table: memory after the first batch, after warm-up and at the end, of our graph and of PyTorch."""
    rows = []
    for engine in ("ours", "PyTorch"):
        with Worker(_run_random_lengths, engine, settings) as worker:
            rows.append(worker.receive())
    title = f"{settings.largest[0]}, batches of random lengths up to {LONGEST}"
    yield Table(title, rows, "MiB; GPU: all that the process takes from it.")


def _run_random_lengths(connection: Connection, engine: str, settings: GpuSettings) -> None:
    """Send the row of an engine: its memory under batches of random lengths."""

    def used_mb() -> tuple[float, float]:
        free, total = (0, 0) if settings.is_dry else torch.cuda.mem_get_info()
        return (total - free) / 2**20, resident_mb(os.getpid())

    def run_batch(rows: int, length: int) -> None:
        ids = rng.integers(5, settings.vocab_size, (rows, length), dtype=np.int32)
        run({"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)})

    before_mb, _ = used_mb()
    run, cap = _engine(engine, settings)
    rng, seconds = np.random.default_rng(0), 5 * settings.seconds
    run_batch(cap // LONGEST, LONGEST)
    samples = {"first": used_mb()}
    started, count = time.monotonic(), 0
    while (passed := time.monotonic() - started) < seconds:
        length = int(rng.integers(4, LONGEST + 1))
        run_batch(int(rng.integers(1, cap // length + 1)), length)
        count += 1
        if passed > WARM_UP * seconds and "warm" not in samples:
            samples["warm"] = used_mb()
    samples["end"] = used_mb()
    samples.setdefault("warm", samples["end"])
    row: dict[str, Any] = {"engine": engine, "batches": count}
    row |= {f"GPU, {name}": round(gpu_mb - before_mb) for name, (gpu_mb, _) in samples.items()}
    connection.send(row | {f"host, {name}": round(host_mb) for name, (_, host_mb) in samples.items()})


def _engine(engine: str, settings: GpuSettings) -> tuple[RunModel, int]:
    """Return a function that runs the largest network in fp16, and the largest batch in tokens."""
    model, task = random_network(settings.largest[1], settings.vocab_size, pooling="mean")
    default = default_configuration(TARGETS["cpu" if settings.is_dry else "cuda"])
    cap = max(LONGEST, default.execution.max_batch_tokens)
    if engine == "PyTorch":
        return torch_run(model if settings.is_dry else model.half(), task, settings.device), cap
    precision = GraphPrecision(matmul="fp32" if settings.is_dry else "fp16")
    graph = build_graph(create_network(model, task), precision, default.variant)
    return graph_run(graph, execution=default.execution), cap


def server(settings: GpuSettings) -> Iterator[Table]:
    """Yield a table: texts/s of the engine and of the server, and the latency of short queries."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models, texts = folder / "models", folder / "texts.txt"
        lines = sentences(500 if settings.is_dry else 20_000, settings.vocab_size)
        texts.write_text("\n".join(lines), encoding="utf-8")
        write_checkpoint(folder / "checkpoint", settings.smallest[1], settings.vocab_size)
        config = ExportConfig(precision="fp32", target="cpu", tune=False)
        if not settings.is_dry:
            config = ExportConfig(precision="fp16", target="cuda", tune=False)
        export_checkpoint(folder / "checkpoint", models / "gpu/1", config, data=ExportData(texts=texts))
        with Worker(_measure_engine, models / "gpu/1", lines, settings.seconds) as worker:
            rows = [_row("engine, 4,096 texts at a time", worker.receive(), [])]
        rows += _served(models, texts, settings)
        for row in rows:
            row["of the engine"] = row["texts/s"] / rows[0]["texts/s"]
        yield Table(f"{settings.smallest[0]}, sentences of 5 to 40 words", rows)


def _measure_engine(connection: Connection, model: Path, lines: list[str], seconds: float) -> None:
    connection.send(engine_rate(model, lines, seconds, chunk=4096))


def _served(models: Path, texts: Path, settings: GpuSettings) -> Iterator[dict[str, Any]]:
    with running_server(models) as started, ExitStack() as stack:
        clients = [stack.enter_context(LoadClient()) for _ in range(NUM_CLIENTS)]
        load = EmbedLoad(target=started.target, texts=texts, seconds=settings.seconds)
        query = replace(load, max_words=8, calls_per_s=40.0)
        loads = {
            "requests of 32, 64 in flight": (1, replace(load, num_texts=32, num_in_flight=64)),
            "the same of four clients": (4, replace(load, num_texts=32, num_in_flight=16)),
            "requests of 512, 16 in flight": (1, replace(load, num_texts=512, num_in_flight=16)),
            "single texts, 64 in flight": (1, replace(load, num_in_flight=64)),
            "the same of four clients, 16 each": (4, replace(load, num_in_flight=16)),
            "short queries, idle server": (1, query),
        }
        for name, (num_clients, each) in loads.items():
            for client in clients[:num_clients]:
                client.send(each)
            found = [client.receive() for client in clients[:num_clients]]
            latencies = [value for result in found for value in result.latencies]
            yield _row(name, sum(result.texts_per_s for result in found), latencies)
        clients[1].send(replace(load, num_texts=32, num_in_flight=64, seconds=settings.seconds + 1))
        result = clients[0].run(query)
        yield _row("short queries with requests of 32", result.texts_per_s, result.latencies)
        clients[1].receive()


def _row(name: str, texts_per_s: float, latencies: Sequence[float]) -> dict[str, Any]:
    return {
        "load": name,
        "texts/s": texts_per_s,
        "median ms": 1e3 * statistics.median(latencies) if latencies else "",
        "p99 ms": 1e3 * percentile(latencies, 0.99) if latencies else "",
    }


def pretraining(settings: GpuSettings) -> Iterator[Table]:
    """Yield a table: tokens/s and MFU by length, with and without torch.compile."""
    with _corpus(settings) as corpus:
        rows = []
        for length, batch in settings.batches.items():
            for compiles in ("off",) if settings.is_dry else ("on", "off"):
                run = corpus.parent / f"{length}-{compiles}"
                flags = f"--compile {compiles} --max-seq-length {length} {_shape(settings)}"
                started = time.monotonic()
                _run(_pretrain(corpus, run, settings.num_steps, batch, flags))
                seconds = time.monotonic() - started
                rows.append({"length": length, "batch": batch, "compile": compiles, **_speed(run), "run, s": seconds})
        title = f"{settings.largest[0]}, `training.pretrain`, {settings.num_steps} steps"
        note = "Medians of the log's second half; tokens without padding. The run includes start and compiling."
        yield Table(title, rows, note)


def _speed(run: Path) -> dict[str, float]:
    found = [line for line in read_metrics(run) if "tokens_per_s" in line]
    later = found[len(found) // 2 :]
    return {
        "tokens/s": statistics.median(line["tokens_per_s"] for line in later),
        "MFU, %": 100 * statistics.median(line["mfu"] for line in later),
        "wait for data, %": 100 * statistics.median(line["data_wait"] for line in later),
    }


def resume(settings: GpuSettings) -> Iterator[Table]:
    """Yield a table: whether the same run again, and one that was interrupted, give the same weights."""
    with _corpus(settings) as corpus:
        runs = {name: corpus.parent / name for name in ("first", "repeated", "resumed")}
        flags = f"--compile off {_shape(settings) if settings.is_dry else ''}"
        for name, run in runs.items():
            words = _pretrain(corpus, run, RESUME_STEPS, 4 if settings.is_dry else 64, flags)
            if name == "resumed":
                _interrupt(words, run)
            _run(words)
        weights = {name: load_file(run / "checkpoint" / "model.safetensors") for name, run in runs.items()}
        first, rows = weights.pop("first"), []
        for name, found in weights.items():
            differences = [float((found[key].float() - value.float()).abs().max()) for key, value in first.items()]
            is_equal = found.keys() == first.keys() and all(torch.equal(found[key], first[key]) for key in first)
            rows.append({"run": name, "bit-equal": is_equal, "largest difference of a weight": max(differences)})
        yield Table(f"{'tiny' if settings.is_dry else '`mini`'}, {RESUME_STEPS} steps", rows)


def _interrupt(words: list[str], run: Path) -> None:
    """Run a command, and interrupt it when it has logged some steps."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while all(line["step"] < INTERRUPT_AFTER for line in read_metrics(run)):
        if process.poll() is not None:
            raise ValueError("the run ended before it could be interrupted")
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.wait()


@contextmanager
def _corpus(settings: GpuSettings) -> Iterator[Path]:
    """Prepare a corpus of random words in a temporary directory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_checkpoint(folder / "checkpoint", TINY, settings.vocab_size)  # for its tokenizer
        write_documents(folder / "text.txt", sentences(2_000 if settings.is_dry else 300_000, settings.vocab_size))
        flags = ("--data", folder / "text.txt", "--tokenizer", folder / "tokenizer", "--out", folder / "corpus")
        _run([sys.executable, "-m", "training.corpus", *map(str, flags)])
        yield folder / "corpus"


def _pretrain(corpus: Path, run: Path, num_steps: int, batch: int, flags: str) -> list[str]:
    """Return a command that pretrains, with `batch` sequences a step."""
    flags += f" --num-steps {num_steps} --global-batch-size {batch} --micro-batch-size {batch}"
    flags += " --log-every 10 --checkpoint-every 0"
    paths = ("--corpus", str(corpus), "--run-dir", str(run))
    return [sys.executable, "-m", "training.pretrain", "mini", *paths, *flags.split()]


def _shape(settings: GpuSettings) -> str:
    layers, hidden, heads = settings.largest[1]
    return f"--num-hidden-layers {layers} --hidden-size {hidden} --num-attention-heads {heads}"


def _run(words: list[str]) -> None:
    """Run a command.

    Raises:
        ValueError: if it fails, with the last line that it printed.
    """
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
        raise ValueError(f"{words[2]} ended with {done.returncode}: {lines[-1]}")


PARTS: dict[PartName, Callable[[GpuSettings], Iterator[Table]]]
PARTS = {"memory": memory, "server": server, "pretraining": pretraining, "resume": resume}


@command
def main() -> None:
    """Run the benchmark."""
    settings = parse(GpuSettings, "benchmarks.gpu", __doc__)
    machine = {
        "device": "no GPU (dry run)" if settings.is_dry else torch.cuda.get_device_name(),
        "cores": str(available_cpus()),
        "Python": platform.python_version(),
        "PyTorch": torch.__version__,
        "ONNX Runtime": onnxruntime.__version__,
    }
    run_parts({name: partial(PARTS[name], settings) for name in settings.parts}, machine, settings.out)


if __name__ == "__main__":
    main()
