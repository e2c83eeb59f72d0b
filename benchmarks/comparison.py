"""Measure alternatives alternately, and print their medians with ratios to a baseline."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping


def alternate(measures: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Measure all alternatives in each round; return their values by name."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            found[name].append(measure())
    return found


def print_rates(found: Mapping[str, list[float]], unit: str) -> None:
    """Print the median rate of each alternative, and its ratio to the first one in the same round."""
    first = next(iter(found))
    for name, rates in found.items():
        ratios = [rate / base for rate, base in zip(rates, found[first], strict=True)]
        spread = f"{statistics.median(ratios):.2f} of {first} ({min(ratios):.2f}-{max(ratios):.2f})"
        print(f"{name:44} {statistics.median(rates):10,.0f} {unit}/s  {spread}")
