"""Claim: what the tuner chooses is at most 5% slower than the best of all forms and ways to run them.

    python -m benchmarks.tuner
    python -m benchmarks.tuner --shape 2 128 2

All that can be combined is timed once, beside the tuner's choices; the fastest then again, in many turns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated

from benchmarks.int8_graphs import random_network, with_ranges
from export.autotune.search import all_choices, tune
from export.autotune.timing import Stopwatch
from export.autotune.workload import Workload, typical_lengths
from export.choice import Choice, default_choice
from export.targets import TARGETS
from export.variant import Numbers, Products
from tasks.machine import available_cpus
from training.bounds import COUNT, check_numbers
from training.command import command, parse
from training.progress_bar import ProgressBar

NUM_FINALISTS = 12


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Compare the tuner with an exhaustive search."""

    shape: tuple[int, int, int] = (6, 384, 12)
    """Layers, hidden size and heads of a network with random weights."""
    products: Products = "static int8"
    num_sequences: Annotated[int, COUNT] = 400
    num_tunings: Annotated[int, COUNT] = 3
    rounds: Annotated[int, COUNT] = 15
    """Of the finalists, in turns."""

    def __post_init__(self) -> None:
        check_numbers(self)


def screened(watch: Stopwatch, choices: Sequence[Choice], known: Choice) -> dict[Choice, float]:
    """Time of each choice, in that of a known one at the same moment."""
    found: dict[Choice, float] = {}
    with ProgressBar("all", unit="choice", total=len(choices)) as progress:
        for _, group in groupby(choices, key=lambda choice: choice.form):
            together = list(group)
            seconds = watch.timed({known: 0, **dict.fromkeys(together)}, 3, lost=1.1, after=1)
            found |= {choice: seconds[choice] / seconds[known] for choice in together}
            watch.free(but=[known])
            progress.update(len(together))
    return found


@command
def main() -> None:
    """Command line."""
    arguments = parse(Arguments, "benchmarks.tuner", __doc__)
    network = with_ranges(*random_network(arguments.shape))
    numbers, cores, target = Numbers(products=arguments.products), available_cpus(), TARGETS["cpu"]
    load = Workload(typical_lengths(arguments.num_sequences, 512), network.task.tokenizer.vocab_size)
    tuned: list[Choice] = []
    for _ in range(arguments.num_tunings):
        started = time.perf_counter()
        tuned.append(tune(network, numbers, load, num_cores=cores)[0])
        print(f"tuned in {time.perf_counter() - started:.0f} s: {tuned[-1].changes(default_choice())}")
    watch = Stopwatch(network, numbers, load, target, cores)
    everything = all_choices(target, numbers, cores)
    found = screened(watch, everything, tuned[0])
    finalists = dict.fromkeys([*tuned, default_choice(), *sorted(found, key=found.__getitem__)[:NUM_FINALISTS]])
    seconds = watch.timed(finalists, arguments.rounds)
    best = min(seconds.values())
    print(f"of {len(everything)} choices, {sum(ratio < 1.05 for ratio in found.values())} within 5% of the tuner's")
    for choice in sorted(finalists, key=seconds.__getitem__):
        chosen = f" ({tuned.count(choice)} of {len(tuned)} tunings)" if choice in tuned else ""
        print(f"{seconds[choice] / best:6.3f}x  {choice.changes(default_choice())}{chosen}")


if __name__ == "__main__":
    main()
