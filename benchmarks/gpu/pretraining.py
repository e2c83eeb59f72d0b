"""Pretraining with `python -m training.pretrain`: speed, and whether repeated and resumed runs end in the same bits."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks.gpu.settings import GpuSettings
from benchmarks.report import Table
from benchmarks.samples import sentences, write_checkpoint, write_documents

LOG_EVERY = 10
RESUME_STEPS = 60
INTERRUPT_AFTER = 20


def pretraining(settings: GpuSettings) -> Iterator[Table]:
    """Yield a table: tokens/s and MFU by length, with and without torch.compile."""
    with _corpus(settings) as corpus:
        rows = []
        for length, batch in settings.batches.items():
            for compiles in ("off",) if settings.is_dry else ("on", "off"):
                run = corpus.parent / f"{length}-{compiles}"
                flags = (*_shape(settings), "--compile", compiles, "--max-seq-length", str(length), *_batch_size(batch))
                started = time.monotonic()
                _run(_command(corpus, run, settings.num_steps, flags))
                seconds = time.monotonic() - started
                rows.append({"length": length, "batch": batch, "compile": compiles, **_speed(run), "run, s": seconds})
        yield Table(
            f"{settings.largest[0]}, `training.pretrain`, {settings.num_steps} steps",
            rows,
            "Medians of the log's second half; tokens without padding. The run includes start and compiling.",
        )


def resume(settings: GpuSettings) -> Iterator[Table]:
    """Yield a table: whether the same run again, and one that was interrupted, give the same weights."""
    with _corpus(settings) as corpus:
        flags = ["--compile", "off", *_batch_size(4 if settings.is_dry else 64)]
        flags += _shape(settings) if settings.is_dry else ()
        runs = {name: corpus.parent / name for name in ("first", "repeated", "resumed")}
        commands = {name: _command(corpus, run, RESUME_STEPS, flags) for name, run in runs.items()}
        _run(commands["first"])
        _run(commands["repeated"])
        _interrupt(commands["resumed"], runs["resumed"] / "metrics.jsonl")
        _run(commands["resumed"])
        weights = {name: load_file(run / "checkpoint" / "model.safetensors") for name, run in runs.items()}
        rows = [
            {"run": name, "bit-equal": _are_equal(*pair), "largest difference of a weight": _difference(*pair)}
            for name in ("repeated", "resumed")
            for pair in [(weights["first"], weights[name])]
        ]
        yield Table(f"{'tiny' if settings.is_dry else '`mini`'}, {RESUME_STEPS} steps", rows)


@contextmanager
def _corpus(settings: GpuSettings) -> Iterator[Path]:
    """Prepare a corpus of random words in a temporary directory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_checkpoint(folder / "checkpoint", *settings.smallest)  # for its tokenizer
        write_documents(folder / "text.txt", sentences(2_000 if settings.is_dry else 300_000, settings.vocab_size))
        words = ("--data", folder / "text.txt", "--tokenizer", folder / "tokenizer", "--out", folder / "corpus")
        _run([sys.executable, "-m", "training.corpus", *map(str, words)])
        yield folder / "corpus"


def _shape(settings: GpuSettings) -> tuple[str, ...]:
    layers, hidden, heads = settings.largest[1]
    shape = {"--num-hidden-layers": layers, "--hidden-size": hidden, "--num-attention-heads": heads}
    return tuple(word for flag, value in shape.items() for word in (flag, str(value)))


def _batch_size(rows: int) -> tuple[str, ...]:
    return "--global-batch-size", str(rows), "--micro-batch-size", str(rows)


def _command(corpus: Path, run: Path, num_steps: int, flags: Sequence[str]) -> list[str]:
    words = ["--corpus", str(corpus), "--run-dir", str(run), "--num-steps", str(num_steps)]
    words += ["--log-every", str(LOG_EVERY), "--checkpoint-every", "0", *flags]
    return [sys.executable, "-m", "training.pretrain", "mini", *words]


def _run(command: list[str]) -> None:
    """Run a command.

    Raises:
        ValueError: if it fails, with the last line that it printed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
        raise ValueError(f"{command[2]} ended with {done.returncode}: {lines[-1]}")


def _interrupt(command: list[str], metrics: Path) -> None:
    """Run a command, and interrupt it when it has logged some steps."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not any(line["step"] >= INTERRUPT_AFTER for line in _lines(metrics)):
        time.sleep(0.02)
    if process.poll() is not None:
        raise ValueError("the run ended before it could be interrupted")
    os.kill(process.pid, signal.SIGINT)
    process.wait()


def _lines(metrics: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a log, which may not exist yet."""
    text = metrics.read_text(encoding="utf-8") if metrics.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _speed(run: Path) -> dict[str, Any]:
    found = [line for line in _lines(run / "metrics.jsonl") if "tokens_per_s" in line]
    later = found[len(found) // 2 :]
    return {
        "tokens/s": statistics.median(line["tokens_per_s"] for line in later),
        "MFU, %": 100 * statistics.median(line["mfu"] for line in later),
        "wait for data, %": 100 * statistics.median(line["data_wait"] for line in later),
    }


def _are_equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(value, two[name]) for name, value in one.items())


def _difference(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    return max(float((value.float() - two[name].float()).abs().max()) for name, value in one.items())
