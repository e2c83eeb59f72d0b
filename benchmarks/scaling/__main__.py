"""Measure how cost grows: models, texts, connections, processes, rows of a job, text of a corpus, training.

    python -m benchmarks.scaling
    python -m benchmarks.scaling models texts --models models/embed
    python -m benchmarks.scaling corpus --corpus-mb 10 100

Writes tables with fitted exponents (1: twice the size costs twice as much) as `build/scaling.md` and `.json`, and a
picture beside them. All takes about twenty minutes on two cores; nothing else should be busy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.report import Table, run_parts
from benchmarks.scaling import data, server
from benchmarks.scaling.growth import plot
from benchmarks.scaling.settings import PartName, ScalingSettings
from tasks.machine import describe_machine, summarize_machine
from training.command import command, parse

PARTS: dict[PartName, Callable[[ScalingSettings], Iterator[Table]]] = {
    "models": server.models,
    "texts": server.texts,
    "connections": server.connections,
    "process": server.process,
    "processes": server.processes,
    "workers": server.workers,
    "rows": data.rows,
    "corpus": data.corpus,
    "training": data.training,
}


@command
def main() -> None:
    """Run the benchmark."""
    settings = parse(ScalingSettings, "benchmarks.scaling", __doc__)
    chosen = {name: partial(PARTS[name], settings) for name in settings.parts}
    parts = run_parts(chosen, {"machine": summarize_machine(describe_machine())}, settings.out)
    plot(parts, settings.out.with_suffix(".png"))
    if failed := [name for name, part in parts.items() if part.error]:
        sys.exit(f"error: failed: {', '.join(failed)}; `{settings.out}.md` has the rest")
    print(f"written: {settings.out}.md, .json and .png")


if __name__ == "__main__":
    main()
