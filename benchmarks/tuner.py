"""Claim: the autotuner's choice is at most 5% slower than the fastest of all configurations.

    python -m benchmarks.tuner
    python -m benchmarks.tuner --shape 2 128 2

All configurations are timed once, together with the autotuner's choices, and the fastest again in many rounds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated

from benchmarks.int8_graphs import random_network, with_ranges
from export.autotune.search import all_configurations, autotune
from export.autotune.timing import Timer
from export.autotune.workload import Workload, typical_lengths
from export.targets import TARGETS, default_configuration
from export.variant import Configuration, GraphPrecision, MatMulPrecision
from tasks.machine import available_cpus
from training.bounds import COUNT, check_numbers
from training.command import command, parse
from training.progress_bar import ProgressBar

NUM_FINALISTS = 12


@dataclass(frozen=True, kw_only=True)
class TunerSettings:
    """Compare the autotuner with an exhaustive search."""

    shape: tuple[int, int, int] = (6, 384, 12)
    """Layers, hidden size and heads of the network with random weights."""
    matmul: MatMulPrecision = "static int8"
    num_sequences: Annotated[int, COUNT] = 400
    num_tunings: Annotated[int, COUNT] = 3
    rounds: Annotated[int, COUNT] = 15
    """Number of rounds among the finalists."""

    def __post_init__(self) -> None:
        check_numbers(self)


def screened(timer: Timer, configurations: Sequence[Configuration], known: Configuration) -> dict[Configuration, float]:
    """Return the time of each configuration, relative to a known one at the same moment."""
    found: dict[Configuration, float] = {}
    with ProgressBar("all", unit="configuration", total=len(configurations)) as progress:
        for _, group in groupby(configurations, key=lambda configuration: configuration.variant):
            together = list(group)
            seconds = timer.timed({known: 0, **dict.fromkeys(together)}, 3, max_slowdown=1.1, min_rounds=1)
            found |= {configuration: seconds[configuration] / seconds[known] for configuration in together}
            timer.close_sessions(keep=[known])
            progress.update(len(together))
    return found


@command
def main() -> None:
    """Run the benchmark."""
    settings = parse(TunerSettings, "benchmarks.tuner", __doc__)
    network = with_ranges(*random_network(settings.shape))
    precision, cores, target = GraphPrecision(matmul=settings.matmul), available_cpus(), TARGETS["cpu"]
    load = Workload(typical_lengths(settings.num_sequences, 512), network.task.tokenizer.vocab_size)
    tuned: list[Configuration] = []
    for _ in range(settings.num_tunings):
        started = time.perf_counter()
        tuned.append(autotune(network, precision, load, num_cores=cores)[0])
        print(f"tuned in {time.perf_counter() - started:.0f} s: {tuned[-1].describe(default_configuration())}")
    timer = Timer(network, precision, load, target, cores)
    everything = all_configurations(target, precision, cores)
    found = screened(timer, everything, tuned[0])
    finalists = dict.fromkeys([*tuned, default_configuration(), *sorted(found, key=found.__getitem__)[:NUM_FINALISTS]])
    seconds = timer.timed(finalists, settings.rounds)
    best = min(seconds.values())
    print(
        f"of {len(everything)} configurations, {sum(ratio < 1.05 for ratio in found.values())} within 5% of the tuner's"
    )
    for configuration in sorted(finalists, key=seconds.__getitem__):
        chosen = f" ({tuned.count(configuration)} of {len(tuned)} tunings)" if configuration in tuned else ""
        print(f"{seconds[configuration] / best:6.3f}x  {configuration.describe(default_configuration())}{chosen}")


if __name__ == "__main__":
    main()
