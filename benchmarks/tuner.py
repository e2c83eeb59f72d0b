"""Claim: the autotuner's choice is within 3% of the fastest engine, graph, threads and batch size, quiet or not.

    python -m benchmarks.tuner
    python -m benchmarks.tuner --num-neighbours 1 --num-tunings 10
    python -m benchmarks.tuner --shape 2 128 2 --engine onnxruntime

All configurations are timed once, together with the autotuner's choices, and the fastest again in many rounds. Busy
neighbours are processes that compute in bursts of random lengths, about half of the time, throughout.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median
from typing import Annotated

from benchmarks.int8_graphs import random_network, with_ranges
from export.autotune.search import able_targets, all_configurations, autotune
from export.autotune.timing import Timer
from export.autotune.workload import Workload, typical_lengths
from export.reporter import Reporter
from export.targets import EngineName, default_configuration, targets_for
from export.variant import Configuration, GraphPrecision, MatMulPrecision
from tasks.embedding import Pooling
from tasks.machine import available_cpus
from training.bounds import COUNT, NOT_NEGATIVE, check_numbers
from training.command import command, parse
from training.progress_bar import ProgressBar

NUM_FINALISTS = 12


@dataclass(frozen=True, kw_only=True)
class TunerSettings:
    """Compare the autotuner with an exhaustive search."""

    shape: tuple[int, int, int] = (6, 384, 12)
    """Layers, hidden size and heads of the network with random weights."""
    pooling: Pooling = "mean"
    engine: EngineName = "auto"
    matmul: MatMulPrecision = "static int8"
    num_neighbours: Annotated[int, NOT_NEGATIVE] = 0
    """Number of other processes that keep cores busy."""
    num_sequences: Annotated[int, COUNT] = 400
    num_tunings: Annotated[int, COUNT] = 3
    rounds: Annotated[int, COUNT] = 60
    """Number of rounds among the finalists."""

    def __post_init__(self) -> None:
        check_numbers(self)


def screened(timer: Timer, configurations: Sequence[Configuration], known: Configuration) -> dict[Configuration, float]:
    """Return the time of each configuration, relative to a known one at the same moment."""
    found: dict[Configuration, float] = {}
    with ProgressBar("all", unit="configuration", total=len(configurations)) as progress:
        for _, group in groupby(configurations, key=lambda item: (item.variant, item.execution.provider)):
            together = list(group)
            seconds = timer.timed({known: 0, **dict.fromkeys(together)}, 3, max_slowdown=1.1, min_rounds=1)
            found |= {configuration: seconds[configuration] / seconds[known] for configuration in together}
            timer.close_sessions(keep=[known])
            progress.update(len(together))
    return found


_NEIGHBOUR = """
import random, time
while True:
    end = time.perf_counter() + random.expovariate(2)
    while time.perf_counter() < end:
        pass
    time.sleep(random.expovariate(2))
"""


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Keep cores busy half of the time, in bursts."""
    processes = [subprocess.Popen([sys.executable, "-c", _NEIGHBOUR]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@command
def main() -> None:
    """Run the benchmark."""
    settings = parse(TunerSettings, "benchmarks.tuner", __doc__)
    with neighbours(settings.num_neighbours):
        compare(settings)


def compare(settings: TunerSettings) -> None:
    """Tune several times, and compare the choices with everything."""
    network = with_ranges(*random_network(settings.shape, pooling=settings.pooling))
    precision, cores = GraphPrecision(matmul=settings.matmul), available_cpus()
    targets = able_targets(targets_for("cpu", settings.engine), network, precision, Reporter(print))
    target, *rivals = targets
    load = Workload(typical_lengths(settings.num_sequences, 512), network.task.tokenizer.vocab_size)
    tuned: list[Configuration] = []
    for _ in range(settings.num_tunings):
        started = time.perf_counter()
        chosen, _ = autotune(network, precision, load, target=target, rivals=rivals, num_cores=cores)
        tuned.append(replace(chosen, fallback=None))
        print(f"tuned in {time.perf_counter() - started:.0f} s: {chosen.describe(default_configuration())}", flush=True)
    timer = Timer(network, precision, load, target, cores)
    everything = [
        replace(item, fallback=None) for rival in targets for item in all_configurations(rival, precision, cores)
    ]
    found = screened(timer, everything, tuned[0])
    finalists = dict.fromkeys([*tuned, default_configuration(), *sorted(found, key=found.__getitem__)[:NUM_FINALISTS]])
    seconds = timer.timed(finalists, settings.rounds)
    best = min(seconds.values())
    ratios = [seconds[item] / best for item in tuned]
    within = sum(ratio <= 1.03 for ratio in ratios)
    print(
        f"within 3% of the fastest: {within} of {len(tuned)} tunings; the median takes {median(ratios):.3f}x its time"
    )
    print(
        f"of {len(everything)} configurations, {sum(ratio < 1.05 for ratio in found.values())} within 5% of the tuner's"
    )
    for configuration in sorted(finalists, key=seconds.__getitem__):
        times = f" ({tuned.count(configuration)} of {len(tuned)} tunings)" if configuration in tuned else ""
        print(f"{seconds[configuration] / best:6.3f}x  {configuration.describe(default_configuration())}{times}")


if __name__ == "__main__":
    main()
