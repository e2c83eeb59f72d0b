"""Growth of a cost: the exponent of a power law, and a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Part, Table

COLOUR, IDEAL = "#3b82f6", "#9ca3af"


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the exponent e of the least-squares fit cost ~ size ** e; NaN for fewer than two sizes."""
    if len(set(sizes)) < 2 or min(costs) <= 0:
        return float("nan")
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def table(title: str, rows: list[dict[str, Any]], costs: Sequence[str], note: str = "") -> Table:
    """Return a table with the exponent of each cost.

    Args:
        rows: rows whose first column is the size.
        costs: columns that grow.
        note: note under the table.
    """
    size = next(iter(rows[0]))
    found = [f"{name}: {exponent([row[size] for row in rows], [row[name] for row in rows]):.2f}" for name in costs]
    return Table(title, rows, " ".join(filter(None, [f"Exponents: {', '.join(found)}.", note])))


def _has_numbers(item: Table) -> bool:
    return len(item.rows) > 1 and all(isinstance(value, int | float) for value in list(item.rows[0].values())[:2])


def _labels(sizes: Sequence[float]) -> list[str]:
    """Return a label for each size; none for a size so close to the one before that their labels would touch."""
    labels, last = list[str](), 0.0
    for size in sizes:
        is_near = last and np.log(size / last) < 0.12 * np.log(sizes[-1] / sizes[0])
        labels.append("" if is_near else f"{size:,.0f}" if size >= 100 else f"{size:.3g}")
        last = last if is_near else size
    return labels


def plot(parts: dict[str, Part], path: Path) -> None:
    """Plot the first cost of each table against its size, both logarithmic, beside a line of exponent 1."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator

    tables = [item for part in parts.values() for item in part.tables if _has_numbers(item)]
    if not tables:
        return
    columns = 3
    figure, grid = plt.subplots(
        -(-len(tables) // columns), columns, figsize=(12, 3.2 * -(-len(tables) // columns)), layout="constrained"
    )
    for axes, item in zip(np.ravel(grid), tables, strict=False):
        size, cost = list(item.rows[0])[:2]
        x, y = ([row[name] for row in item.rows] for name in (size, cost))
        axes.loglog(x, [y[0] * value / x[0] for value in x], color=IDEAL, linewidth=1, linestyle="--")
        axes.loglog(x, y, color=COLOUR, marker="o")
        axes.set(xlabel=size, ylabel=cost, ylim=(min(y) / 2, max(y) * 2))
        axes.set_title(textwrap.fill(item.title, 46), fontsize=9)
        axes.set_xticks(x, _labels(x), fontsize=8)
        axes.yaxis.set_major_locator(LogLocator(subs=(1,) if max(y) > 50 * min(y) else (1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_locator(NullLocator())
        axes.spines[["top", "right"]].set_visible(False)
    for axes in np.ravel(grid)[len(tables) :]:
        axes.axis("off")
    figure.savefig(path, dpi=110)
    plt.close(figure)
