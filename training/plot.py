"""Training curves of a run as a picture.

python -m training.plot runs/demo/pretrain
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from training.command import command
from training.run import read_metrics

CURVES_FILE = "curves.png"


def plot_run(run: Path) -> Path:
    """Draw a run's curves into its directory; returns the picture's path."""
    return plot_runs({run.name: run}, run / CURVES_FILE)


def plot_runs(runs: Mapping[str, Path], path: Path) -> Path:
    """Draw loss, evaluation and learning rate of several runs, a row each.

    Raises:
        ValueError: naming a run without metrics.
    """
    figure, rows = plt.subplots(len(runs), 3, figsize=(13, 3.1 * len(runs)), squeeze=False, layout="constrained")
    for axes, (name, run) in zip(rows, runs.items(), strict=True):
        lines = read_metrics(run)
        if not lines:
            raise ValueError(f"no metrics in run `{run}`")
        _draw(axes[0], lines, [key for key in ("loss", "mlm", "nsp", "eval_mlm_loss") if _has(lines, key)])
        axes[0].set_ylabel("loss (nats)")
        scores = [key for line in lines for key in line if key.startswith("eval_") and not key.endswith("loss")]
        _draw(axes[1], lines, list(dict.fromkeys(scores)))
        axes[1].set_ylabel("score on dev")
        axes[1].set_ylim(0, 1)
        _draw(axes[2], lines, ["learning_rate"])
        axes[2].set_ylabel("learning rate")
        axes[0].set_title(name, loc="left", fontweight="bold")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _has(lines: Sequence[Mapping[str, Any]], key: str) -> bool:
    return any(key in line for line in lines)


def _draw(axes: Axes, lines: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> None:
    for key in keys:
        points = [(line["step"], line[key]) for line in lines if key in line]
        is_eval = key.startswith("eval_")
        label = key.removeprefix("eval_").replace("_", " ") + (" (dev)" if is_eval else "")
        axes.plot(*zip(*points, strict=True), label=label, marker="o" if is_eval else None, markersize=3)
    axes.set_xlabel("step")
    axes.grid(alpha=0.3)
    if keys:
        axes.legend(fontsize="small")


@command
def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Draw the training curves of a run.")
    parser.add_argument("run", type=Path)
    print(plot_run(parser.parse_args().run))


if __name__ == "__main__":
    main()
