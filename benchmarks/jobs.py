"""What a job of the command adds to the engine: `bertline embed` of a file, beside the engine in the same run, and its
memory for files of two lengths.

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
from benchmarks.server_process import served
from benchmarks.serving import engine_texts_per_s
from training.bounds import COUNT, POSITIVE, Bounds, check_numbers
from training.command import command, parse

SAMPLE_S = 0.01


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Command line."""

    what: Annotated[Literal["throughput", "memory"], tyro.conf.Positional]
    models: Annotated[Path, tyro.conf.Positional]
    """Directory with one model of task embedding."""
    texts: Path
    """One a line."""
    num_texts: Annotated[int, COUNT] = 50_000
    """Of the job; those of the file, again and again."""
    more_texts: Annotated[int, Bounds(least=10)] = 100_000
    """Of the job whose memory is compared with that of a tenth of it."""
    seconds: Annotated[float, POSITIVE] = 10.0
    """Of each measurement of the engine."""
    rounds: Annotated[int, COUNT] = 3
    """Of all measurements, in turns."""
    output: str = "out.parquet"
    """Name of the output, which says its format."""
    options: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Of the command, each for itself: `--options=--batch-size=64 --options=--dtype=float16`."""

    def __post_init__(self) -> None:
        check_numbers(self)


@dataclass(frozen=True)
class Ran:
    """A job that was done."""

    seconds: float
    """From its start to its end."""
    core_s: float
    """CPU time of the command."""
    peak_mb: float
    """Most memory of the command."""


def run_job(target: str, texts: Sequence[str], arguments: Arguments) -> Ran:
    """Run the command on a file of texts."""
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder) / "in.txt", Path(folder) / arguments.output
        source.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
        embed = [sys.executable, "-m", "bertline.cli", "embed", "--truncate", "-t", target, *arguments.options]
        ran = measured([*embed, "-i", str(source), "-o", str(output)])
        if not output.exists():
            raise ValueError("the job wrote nothing; what it says stands above")
        return ran


def measured(words: Sequence[str]) -> Ran:
    """Run a command to its end.

    Raises:
        ValueError: when it fails.
    """
    started, peak_mb = time.perf_counter(), 0.0
    process = subprocess.Popen(words)
    while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
        peak_mb = max(peak_mb, _peak_mb(process.pid))
        time.sleep(SAMPLE_S)
    _, status, usage = ended
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise ValueError("the job failed; what it says stands above")
    return Ran(time.perf_counter() - started, usage.ru_utime + usage.ru_stime, peak_mb)


def _peak_mb(pid: int) -> float:
    """Most memory of a process until now, 0 when it has ended; what `wait4` tells counts its parent's, too."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    return int(found[1]) / 1024 if found else 0.0


def first(texts: Sequence[str], count: int) -> list[str]:
    """So many texts."""
    return list(itertools.islice(itertools.cycle(texts), count))


def throughput(arguments: Arguments) -> None:
    """The engine and the job in turns, the engine before and after each."""
    texts = read_texts(arguments.texts)
    given, ratios = first(texts, arguments.num_texts), []
    with served(arguments.models) as server:
        run_job(server.target, given[:1000], arguments)
        before = engine_texts_per_s(arguments.models, texts, arguments.seconds)
        for _ in range(arguments.rounds):
            ran = run_job(server.target, given, arguments)
            after = engine_texts_per_s(arguments.models, texts, arguments.seconds)
            engine, job = statistics.mean((before, after)), len(given) / ran.seconds
            ratios.append(job / engine)
            micros = 1e6 * ran.core_s / len(given)
            print(
                f"engine {engine:,.0f} texts/s, job {job:,.0f} ({ratios[-1]:.2f}), {micros:.0f} us of a core a text "
                f"in the command, {ran.peak_mb:.0f} MB",
                flush=True,
            )
            before = after
    print(f"{arguments.output}: {statistics.median(ratios):.2f} of the engine (median of {len(ratios)})")


def memory(arguments: Arguments) -> None:
    """A short file and one ten times as long."""
    texts = read_texts(arguments.texts)
    peaks = []
    with served(arguments.models) as server:
        for count in (arguments.more_texts // 10, arguments.more_texts):
            peaks.append(run_job(server.target, first(texts, count), arguments).peak_mb)
            print(f"{count:,} rows: {peaks[-1]:.0f} MB at most", flush=True)
    print(f"{peaks[1] / peaks[0]:.2f} times the memory for ten times the rows")


@command
def main() -> None:
    """Command line."""
    arguments = parse(Arguments, "benchmarks.jobs", __doc__)
    {"throughput": throughput, "memory": memory}[arguments.what](arguments)


if __name__ == "__main__":
    main()
