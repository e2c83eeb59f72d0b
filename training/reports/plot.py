"""Plots of training curves: `curves.png`, and SVG for `training.report`."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, findSystemFonts, get_font
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter, Formatter, MaxNLocator, PercentFormatter, ScalarFormatter

from tasks.bundle.files import atomic_write
from tasks.metrics import CHARACTERS_SUFFIX, is_loss
from training.loop.run_directory import read_metrics

CURVES_FILE = "curves.png"
MAX_POINTS = 80
"""Largest number of points of a curve. With more lines, a point is the mean of several, in a band of their range."""
POSITIONS = ("step", "epoch", "num_tokens", "elapsed_s")
"""Keys of a metrics line that are progress, not values."""
LOSS, DEV_SCORES = "loss", "scores on dev, percent"
"""Titles of the panels with several curves."""
LOSSES = ("loss", "mlm", "nsp", "generator", "discriminator", "corrector")
NAMES = {
    "mlm": "masked words",
    "nsp": "next sentence",
    "generator": "generator, masked words",
    "discriminator": "discriminator, replaced words",
    "corrector": "corrector, masked words",
    "mlm_loss": "masked words, loss (nats)",
    "mlm_accuracy": "masked words, accuracy",
    "nsp_accuracy": "next sentence, accuracy",
    "f1": "F1",
    "macro_f1": "macro F1",
    "matthews": "Matthews correlation",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "has_answer_exact_match": "exact match, answerable",
    "has_answer_f1": "F1, answerable",
    "no_answer_exact_match": "exact match, unanswerable",
    "no_answer_f1": "F1, unanswerable",
    "grad_norm": "gradient norm",
    "tokens_per_s": "tokens/s",
    "flops_per_s": "FLOP/s",
    "mfu": "model FLOP utilization, percent",
    "data_wait": "wait for data, percent of the time",
}
"""Labels of keys that do not label themselves."""
FRACTIONS = {"mfu", "data_wait"}
"""Keys that are fractions, in addition to the scores on dev."""
COLOURS = ("#3b82f6", "#e8833a", "#2ea36b", "#c2569b", "#8b6fd6", "#9a8453")
"""Distinguishable on light and dark backgrounds, and by most colour-blind people."""
FAILED = "#c0392f"
INK = "#0a0b0c"
"""Placeholder for the colour of the page's text."""


@dataclass(frozen=True)
class Panel:
    """One plot: some keys of the metrics over the steps."""

    title: str
    keys: tuple[str, ...]

    @property
    def in_percent(self) -> bool:
        """True if the values are fractions, shown in percent."""
        return self.title == DEV_SCORES or not FRACTIONS.isdisjoint(self.keys)


def panels(lines: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Return the panels to draw: loss, scores on dev, then each other number in the lines, known ones first."""
    keys = list(dict.fromkeys(key for line in lines for key, value in line.items() if isinstance(value, int | float)))
    losses = [key for key in LOSSES if key in keys] + [
        key for key in keys if shows_loss(key) and key not in LOSSES and not key.endswith("error")
    ]
    scores = [key for key in keys if key.startswith("eval_") and not shows_loss(key)]
    others = [key for key in keys if key not in (*POSITIONS, *losses, *scores)]
    known = [key for key in ("learning_rate", "grad_norm", *NAMES) if key in others]
    found = [Panel(LOSS, tuple(losses)), Panel(DEV_SCORES, tuple(scores))]
    found += [Panel(curve_name(key), (key,)) for key in dict.fromkeys(known + others)]
    return [panel for panel in found if panel.keys]


def shows_loss(key: str) -> bool:
    """Return whether a key of metrics or scores is a loss or an error, not a fraction."""
    return key in LOSSES or is_loss(key)


def curve_name(key: str) -> str:
    """Return the label of a key of metrics or scores."""
    if key.endswith(CHARACTERS_SUFFIX):
        return curve_name(key.removesuffix(CHARACTERS_SUFFIX)) + CHARACTERS_SUFFIX
    key = key.removeprefix("eval_")
    label = key.removeprefix("f1_")
    return NAMES.get(key, key.replace("_", " ") if label == key else f"F1 of {label}")


@dataclass(frozen=True)
class Curve:
    """Points of a curve; each array is [points]."""

    steps: np.ndarray
    means: np.ndarray
    lows: np.ndarray
    highs: np.ndarray


def curve(lines: Sequence[Mapping[str, Any]], key: str) -> Curve:
    """Return the values of a key over the steps, thinned to MAX_POINTS means with their ranges.

    Values that are not finite are skipped. The first and last points keep their steps.
    """
    found = ((line["step"], line.get(key)) for line in lines)
    points = [(step, value) for step, value in found if isinstance(value, int | float) and math.isfinite(value)]
    values = np.array(points, dtype=np.float64).reshape(-1, 2)
    size = max(1, -(-len(values) // MAX_POINTS))
    parts = [values[first : first + size] for first in range(0, len(values), size)]
    steps = np.array([part[:, 0].mean() for part in parts])
    if parts:
        steps[0], steps[-1] = values[0, 0], values[-1, 0]
    means, lows, highs = (np.array([how(part[:, 1]) for part in parts]) for how in (np.mean, np.min, np.max))
    return Curve(steps, means, lows, highs)


def plot_run(run: Path) -> Path:
    """Plot a run's curves into its directory; return the path."""
    return plot_runs({run.name: run}, run / CURVES_FILE)


def plot_runs(runs: Mapping[str, Path], path: Path) -> Path:
    """Plot loss, evaluation and learning rate of several runs, a row for each.

    Raises:
        ValueError: naming a run without metrics.
    """
    figure, rows = plt.subplots(len(runs), 3, figsize=(13, 3.4 * len(runs)), squeeze=False, layout="constrained")
    for axes, (name, run) in zip(rows, runs.items(), strict=True):
        lines = read_metrics(run)
        if not lines:
            raise ValueError(f"no metrics in run `{run}`")
        found = {panel.title: panel for panel in panels(lines)}
        for panel_axes, title in zip(axes, (LOSS, DEV_SCORES, "learning rate"), strict=True):
            panel = found.get(title, Panel(title, ()))
            draw(panel_axes, lines, panel)
            panel_axes.set_ylabel(title)
            panel_axes.set_xlabel("step")
            if len(panel.keys) > 1:
                below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2)}
                panel_axes.legend(**below, ncols=2, fontsize="small", frameon=False)
        axes[0].set_title(name, loc="left", fontweight="bold")
    save_figure(figure, path)
    return path


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure atomically, and close it."""
    set_fonts(figure)
    file = io.BytesIO()
    figure.draw_without_rendering()  # ticks may change with the layout
    figure.savefig(file, format="png", dpi=110)
    plt.close(figure)
    atomic_write(path, file.getvalue())


def set_fonts(figure: Figure) -> None:
    """Give texts in scripts that the default font lacks a font of the system; without one, codes such as `\\u597d`."""
    default = findfont(FontProperties())
    for text in figure.findobj(Text):
        chars = {*text.get_text()} - {"\n"}
        font = next((path for path in chain([default], _system_fonts()) if chars <= _characters(path)), None)
        if font is None:
            text.set_text(text.get_text().encode("ascii", "backslashreplace").decode())
        elif font != default:
            properties = text.get_fontproperties().copy()
            properties.set_file(font)
            text.set_fontproperties(properties)


@cache
def _system_fonts() -> list[str]:
    return sorted(findSystemFonts(), key=lambda path: ("Bold" in path, "Serif" in path, path))


@cache
def _characters(path: str) -> frozenset[str]:
    """Return the characters of a font; none if it cannot be read or has bitmaps only."""
    try:
        font = get_font(path)
        return frozenset(map(chr, font.get_charmap())) if font.scalable else frozenset()
    except (OSError, RuntimeError):
        return frozenset()


def draw(axes: Axes, lines: Sequence[Mapping[str, Any]], panel: Panel) -> None:
    """Draw a panel without its legend."""
    highest, lowest = 1.0, 0.0
    for key, (label, colour) in zip(panel.keys, legend(panel), strict=True):
        points = curve(lines, key)
        style = "o-" if key.startswith("eval_") or len(points.steps) == 1 else "-"
        axes.plot(points.steps, points.means, style, label=label, color=colour, linewidth=1.6, markersize=3.5)
        if (points.lows < points.highs).any():
            axes.fill_between(points.steps, points.lows, points.highs, color=colour, alpha=0.2, linewidth=0)
        highest, lowest = points.highs.max(initial=highest), points.lows.min(initial=lowest)
    if panel.title == DEV_SCORES:
        axes.set_ylim(1.05 * lowest, 1.03 * highest)
    if panel.keys:
        axes.set_xlim(left=0)
    if panel.in_percent:
        axes.yaxis.set_major_formatter(percent_ticks())
    else:
        axes.yaxis.set_major_formatter(EngFormatter(sep="") if highest >= 1000 else ScalarFormatter(useOffset=False))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.25)


def percent_ticks() -> Formatter:
    """Return labels of fractions in percent, without the sign."""
    return PercentFormatter(1, symbol="")


def label_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Label the rows of a plot, the first on top."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(alpha=0.25, axis="x")


def note_row(axes: Axes, row: int, text: str) -> None:
    """Write a text to the right of a row."""
    axes.annotate(
        text,
        (1, row),
        (6, 0),
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
        va="center",
        fontsize="small",
        annotation_clip=False,
    )


def legend(panel: Panel) -> list[tuple[str, str]]:
    """Return label and colour of each curve of a panel."""
    labels = [
        f"{curve_name(key.removesuffix('_loss'))} on dev"
        if key.startswith("eval_") and shows_loss(key)
        else curve_name(key)
        for key in panel.keys
    ]
    return list(zip(labels, islice(cycle(COLOURS), len(labels)), strict=True))


def svg(lines: Sequence[Mapping[str, Any]], panel: Panel) -> str:
    """Return a panel without legend as an SVG element for a page; its text is in the page's font."""
    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": panel.title,
        "text.parse_math": False,
        "font.size": 11,
        **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
        "grid.color": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(settings):
        figure, axes = plt.subplots(figsize=(4.4, 2.7), layout="constrained")
        draw(axes, lines, panel)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        plt.close(figure)
    text = file.getvalue()
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1">', text, count=1)
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # ids would repeat on the page, and are not used
    text = re.sub(r"font-family: [^;]*; ", "", text)
    return text.replace("xlink:href", "href").replace(INK, "currentColor")
