"""Growth of jobs, corpora and training steps."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle, islice
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from benchmarks.jobs import run_measured
from benchmarks.report import Table
from benchmarks.samples import TINY_VOCAB_SIZE, sentences, tiny_model, write_checkpoint, write_documents
from benchmarks.scaling.growth import table
from benchmarks.scaling.settings import ScalingSettings
from benchmarks.server_process import running_server
from benchmarks.training_step import TrainingStepSettings, ours
from benchmarks.worker import Worker

SIZES = {"L2 H128": (2, 128, 2), "L4 H256": (4, 256, 4), "L6 H384": (6, 384, 12), "L8 H512": (8, 512, 8)}
TOKENS = 4096
"""Tokens of a training step; fewer for a length that does not divide them."""


def rows(settings: ScalingSettings) -> Iterator[Table]:
    """Yield a table: seconds and memory of `bertline embed` by rows."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny, lines = tiny_model(folder), (folder / "texts.txt").read_text(encoding="utf-8").splitlines()
        with running_server(tiny, ("--log-level=error",)) as server:
            for count in settings.num_rows:
                source, output = folder / f"{count}.txt", folder / f"{count}.npy"
                with source.open("w", encoding="utf-8") as file:
                    file.writelines(f"{line}\n" for line in islice(cycle(lines), count))
                embed = [sys.executable, "-m", "bertline.cli", "embed", "-t", server.target, "--truncate"]
                ran = run_measured([*embed, "-i", str(source), "-o", str(output)])
                found.append(
                    {
                        "rows": count,
                        "s": ran.seconds,
                        "rows/s": count / ran.seconds,
                        "CPU of the command, us a row": 1e6 * ran.core_s / count,
                        "memory, MB": ran.peak_mb,
                    }
                )
    yield table("Rows of a job, a tiny network", found, ("s", "memory, MB"))


def corpus(settings: ScalingSettings) -> Iterator[Table]:
    """Yield a table: seconds and memory of `training.corpus` by megabytes of text."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_checkpoint(folder / "checkpoint")
        part = folder / "part.txt"
        write_documents(part, sentences(100_000, TINY_VOCAB_SIZE))
        text = part.read_bytes()
        for size in settings.corpus_mb:
            source = folder / "text.txt"
            with source.open("wb") as file:
                while (room := size * 10**6 - file.tell()) > 0:
                    file.write(text[:room])
            prepare = [sys.executable, "-m", "training.corpus", "--data", str(source), "--out", str(folder / str(size))]
            ran = run_measured([*prepare, "--tokenizer", str(folder / "tokenizer")])
            found.append({"MB": size, "s": ran.seconds, "MB/s": size / ran.seconds, "memory, MB": ran.peak_mb})
    yield table("Text of a corpus", found, ("s", "memory, MB"), "Memory is that of the main process.")


def training(settings: ScalingSettings) -> Iterator[Table]:
    """Yield tables: milliseconds of a step by length and by size, with the same number of tokens in each step."""
    by_length = [{"tokens of a sequence": length, **_step(SIZES["L4 H256"], length)} for length in settings.lengths]
    yield table(f"Length in training, L4 H256, at most {TOKENS:,} tokens a step", by_length, ("ms",))
    by_size = [
        {"million weights in layers": 12 * layers * hidden**2 / 1e6, **_step((layers, hidden, heads), 128)}
        for layers, hidden, heads in SIZES.values()
    ]
    yield table(f"Size in training: {', '.join(SIZES)}, 128 tokens", by_size, ("ms",))


def _step(shape: tuple[int, int, int], length: int) -> dict[str, float]:
    """Measure a step in a process of its own: memory of one size would serve another one."""
    batch_size = TOKENS // length
    worker = Worker(_measure_step, shape, batch_size, length)
    try:
        median = worker.receive()
    finally:
        worker.close()
    return {"ms": 1e3 * median, "tokens/s": batch_size * length / median}


def _measure_step(connection: Connection, shape: tuple[int, int, int], batch_size: int, length: int) -> None:
    layers, hidden, heads = shape
    torch.manual_seed(0)
    step = ours(
        TrainingStepSettings(
            num_hidden_layers=layers,
            hidden_size=hidden,
            num_attention_heads=heads,
            batch_size=batch_size,
            length=length,
        ),
        0.1,
    )
    seconds = []
    for _ in range(8):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    connection.send(statistics.median(seconds[2:]))
