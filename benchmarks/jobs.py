"""Measure jobs of the command: throughput of `bertline embed` on a file against the engine, and memory by file size.

    python -m benchmarks.jobs throughput models --texts sentences.txt
    python -m benchmarks.jobs memory models --texts sentences.txt

Command, server and engine share the cores of this machine; nothing else should be busy.
"""

from __future__ import annotations

import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from benchmarks.embed_load import read_texts
from benchmarks.engine import Engine
from benchmarks.server_process import embedding_model, running_server
from tasks.schema import Bounds
from training.bounds import COUNT, POSITIVE, check_numbers
from training.command import command, parse

SAMPLE_S = 0.01


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """Command line."""

    measurement: Annotated[Literal["throughput", "memory"], tyro.conf.Positional]
    models: Annotated[Path, tyro.conf.Positional]
    """Directory with one model of task embedding."""
    texts: Path
    """File with one text per line."""
    num_texts: Annotated[int, COUNT] = 50_000
    """Texts in the job. The texts of the file are repeated."""
    more_texts: Annotated[int, Bounds(least=10)] = 100_000
    """Texts in the larger job of `memory`. The smaller one has a tenth of it."""
    seconds: Annotated[float, POSITIVE] = 10.0
    """Seconds of each measurement of the engine."""
    rounds: Annotated[int, COUNT] = 3
    """Rounds of all measurements."""
    output: str = "out.parquet"
    """Name of the output file; its extension sets the format."""
    options: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Option of the command; repeat for several: `--options=--batch-size=64 --options=--dtype=float16`."""

    def __post_init__(self) -> None:
        check_numbers(self)


@dataclass(frozen=True)
class JobMeasurement:
    """Time and memory of a job."""

    seconds: float
    """Wall time."""
    core_s: float
    """CPU time of the command."""
    peak_mb: float
    """Peak resident memory of the command, in MiB."""


def run_job(target: str, texts: Sequence[str], settings: JobSettings) -> JobMeasurement:
    """Run the command on a file of texts."""
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder) / "in.txt", Path(folder) / settings.output
        source.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
        embed = [sys.executable, "-m", "bertline.cli", "embed", "--truncate", "-t", target, *settings.options]
        ran = run_measured([*embed, "-i", str(source), "-o", str(output)])
        if not output.exists():
            raise ValueError("the job wrote nothing; its output is above")
        return ran


def run_measured(words: Sequence[str]) -> JobMeasurement:
    """Run a command and measure it.

    Raises:
        ValueError: if it fails.
    """
    started, peak_mb = time.perf_counter(), 0.0
    process = subprocess.Popen(words)
    while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
        peak_mb = max(peak_mb, _peak_mb(process.pid))
        time.sleep(SAMPLE_S)
    _, status, usage = ended
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise ValueError("the job failed; its output is above")
    return JobMeasurement(time.perf_counter() - started, usage.ru_utime + usage.ru_stime, peak_mb)


def _peak_mb(pid: int) -> float:
    """Return the peak memory of a process until now, 0 if it has ended.

    `ru_maxrss` of `wait4` would include the memory of the parent before exec.
    """
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    return int(found[1]) / 1024 if found else 0.0


def repeat_texts(texts: Sequence[str], count: int) -> list[str]:
    """Return `count` texts, repeated if necessary."""
    return list(itertools.islice(itertools.cycle(texts), count))


def throughput(settings: JobSettings) -> None:
    """Measure engine and job in turns. The engine is measured before and after each job."""
    texts = read_texts(settings.texts)
    rows, ratios = repeat_texts(texts, settings.num_texts), []
    with running_server(settings.models) as server:
        run_job(server.target, rows[:1000], settings)
        engine_alone = Engine(embedding_model(settings.models))
        before = engine_alone.examples_per_s(texts, settings.seconds)
        for _ in range(settings.rounds):
            ran = run_job(server.target, rows, settings)
            after = engine_alone.examples_per_s(texts, settings.seconds)
            engine, job = statistics.mean((before, after)), len(rows) / ran.seconds
            ratios.append(job / engine)
            micros = 1e6 * ran.core_s / len(rows)
            print(
                f"engine {engine:,.0f} texts/s, job {job:,.0f} ({ratios[-1]:.2f}), {micros:.0f} us of CPU time "
                f"per text in the command, {ran.peak_mb:.0f} MB",
                flush=True,
            )
            before = after
    print(f"{settings.output}: {statistics.median(ratios):.2f} of the engine (median of {len(ratios)})")


def memory(settings: JobSettings) -> None:
    """Measure memory for a file, and for one ten times as long."""
    texts = read_texts(settings.texts)
    peaks = []
    with running_server(settings.models) as server:
        for count in (settings.more_texts // 10, settings.more_texts):
            peaks.append(run_job(server.target, repeat_texts(texts, count), settings).peak_mb)
            print(f"{count:,} rows: {peaks[-1]:.0f} MB at most", flush=True)
    print(f"{peaks[1] / peaks[0]:.2f} times the memory for ten times the rows")


@command
def main() -> None:
    """Run the benchmark."""
    settings = parse(JobSettings, "benchmarks.jobs", __doc__)
    {"throughput": throughput, "memory": memory}[settings.measurement](settings)


if __name__ == "__main__":
    main()
