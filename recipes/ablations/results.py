"""Tables of the runs' scores: as Markdown, as JSON-compatible values, and as plots.

A plot has a bar for each row with a dot for each seed, or curves over steps; all in percent.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from recipes.ablations.runs import Runs
from recipes.ablations.tables import LABELLED_DATA, Column, Table, TableName
from training.reports.grid_report import Outcome, baseline_of
from training.reports.plot import COLOURS, curve_name, label_rows, note_row, percent_ticks, plt, save_figure
from training.reports.tables import markdown_table

LM_LOSS = "LM loss (nats)"
"""Column of the pretraining loss on held-out text; the paper's table 6 has its exponential."""


@dataclass(frozen=True, kw_only=True)
class CellScores:
    """Scores of a row in a column."""

    scores: tuple[float, ...]
    """Score of each finished seed."""
    num_runs: int
    """Number of planned runs."""
    num_failed: int

    @property
    def mean(self) -> float | None:
        """Mean of the scores; None without scores."""
        return statistics.fmean(self.scores) if self.scores else None

    @property
    def standard_deviation(self) -> float | None:
        """Sample standard deviation; None for a single score."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def is_complete(self) -> bool:
        """True if all runs are done."""
        return len(self.scores) + self.num_failed == self.num_runs


@dataclass(frozen=True, kw_only=True)
class Result:
    """A table with its scores."""

    table: Table
    cells: Sequence[Sequence[CellScores]]
    """Scores by row and column of the table."""
    lm_losses: Sequence[float | None]
    """Pretraining loss by row."""
    baselines: Sequence[tuple[str, float] | None]
    """Baseline by column."""

    @property
    def is_complete(self) -> bool:
        """True if all runs are done."""
        return all(cell.is_complete for row in self.cells for cell in row)


def collect(table: Table, runs: Runs, outcomes: Mapping[Path, Outcome]) -> Result:
    """Fill a table with the outcomes so far."""
    cells: list[list[CellScores]] = []
    lm_losses: list[float | None] = []
    baselines: dict[Column, tuple[str, float]] = {}
    for row in table.rows:
        pretrained = outcomes.get(runs.pretraining(row.pretraining).run_dir)
        lm_losses.append(pretrained.score("mlm_loss") if pretrained and not row.from_scratch else None)
        cells.append([])
        for column in table.columns:
            metric = LABELLED_DATA[column.task].metric
            directories = [recipe.run_dir for recipe in runs.finetunings(row, column)]
            found = [outcomes[directory] for directory in directories if directory in outcomes]
            scores = [outcome.score(metric) for outcome in found]
            ended = tuple(score for score in scores if score is not None)
            num_failed = len(scores) - len(ended)
            cells[-1].append(CellScores(scores=ended, num_runs=len(directories), num_failed=num_failed))
            for outcome in found:
                if outcome.scores:
                    name, baseline = baseline_of(outcome.scores)
                    baselines.setdefault(column, (name, baseline[metric]))
    in_order = [baselines.get(column) for column in table.columns]
    return Result(table=table, cells=cells, lm_losses=lm_losses, baselines=in_order)


def markdown(result: Result, heading: str) -> str:
    """Format a table as Markdown: means in percent, with deviations if there are several seeds."""
    table = result.table
    has_deviations = any(cell.standard_deviation is not None for row in result.cells for cell in row)
    over_seeds = ": mean and sample standard deviation over seeds" if has_deviations else ""
    about = f"Scores in percent{over_seeds}. The last row is a baseline without a model."
    metrics = [f"{column.label}, {curve_name(LABELLED_DATA[column.task].metric)}" for column in table.columns]
    lines = [["", LM_LOSS, *metrics]]
    for row, loss, cells in zip(table.rows, result.lm_losses, result.cells, strict=True):
        lines.append([row.label, "" if loss is None else f"{loss:.3f}", *map(format_cell, cells)])
    names = " / ".join(dict.fromkeys(item[0] for item in result.baselines if item))
    if names:
        lines.append([names, "", *(f"{100 * item[1]:.1f}" if item else "" for item in result.baselines)])
    return f"# {table.paper_name}: {table.title}\n\n{heading}. {about}\n\n{markdown_table(lines)}\n"


def format_cell(cell: CellScores) -> str:
    """Format a cell as `81.2 ± 0.4`, with the number of missing and failed runs."""
    if cell.mean is None:
        return "failed" if cell.num_failed else ""
    text = f"{100 * cell.mean:.1f}"
    if cell.standard_deviation is not None:
        text += f" ± {100 * cell.standard_deviation:.1f}"
    if cell.num_failed:
        text += f" ({cell.num_failed} failed)"
    missing = cell.num_runs - cell.num_failed - len(cell.scores)
    return text + (f" ({missing} to come)" if missing else "")


def to_dict(result: Result, heading: str) -> dict[str, Any]:
    """Return a table as JSON-compatible values."""
    table = result.table
    return {
        "heading": heading,
        "name": table.name,
        "title": table.title,
        "baselines": {
            column.label: dict([item]) if item else None
            for column, item in zip(table.columns, result.baselines, strict=True)
        },
        "rows": [
            {
                "label": row.label,
                "pretraining": {"name": row.pretraining.name, **row.pretraining.changes},
                "lm_loss": loss,
                "scores": {
                    column.label: asdict(cell) | {"mean": cell.mean, "standard_deviation": cell.standard_deviation}
                    for column, cell in zip(table.columns, cells, strict=True)
                },
            }
            for row, loss, cells in zip(table.rows, result.lm_losses, result.cells, strict=True)
        ],
    }


def files(table: TableName) -> tuple[str, str, str]:
    """Return the file names of a table: values, text and plot."""
    return f"table-{table}.json", f"table-{table}.md", f"table-{table}.png"


def plot_result(result: Result, path: Path) -> None:
    """Plot a table, with a panel for each column."""
    table = result.table
    is_curve = any(row.group for row in table.rows)
    height = 3.6 if is_curve else 1.2 + 0.42 * len(table.rows)
    panels = len(table.columns)
    figure, grid = plt.subplots(
        1, panels, figsize=(3.2 + 3.3 * panels, height), sharey=not is_curve, squeeze=False, layout="constrained"
    )
    for number, (axes, column) in enumerate(zip(grid[0], table.columns, strict=True)):
        cells = [row[number] for row in result.cells]
        (_draw_curves if is_curve else _draw_bars)(axes, result, cells)
        _draw_baseline(axes, result.baselines[number], vertical=not is_curve)
        axes.set_title(f"{column.label}, {curve_name(LABELLED_DATA[column.task].metric)}, percent", fontsize="medium")
    figure.suptitle(table.title, fontweight="bold")
    save_figure(figure, path)


def _draw_bars(axes: Axes, result: Result, cells: list[CellScores]) -> None:
    for number, cell in enumerate(cells):
        if cell.mean is not None:
            axes.barh(number, cell.mean, color=COLOURS[0], alpha=0.45, height=0.65)
            axes.plot(cell.scores, [number] * len(cell.scores), "o", color=COLOURS[0], markersize=4)
        note_row(axes, number, format_cell(cell))
    label_rows(axes, [row.label for row in result.table.rows])
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(percent_ticks())


def _draw_curves(axes: Axes, result: Result, cells: list[CellScores]) -> None:
    rows = result.table.rows
    groups = list(dict.fromkeys(row.group for row in rows))
    for group, colour in zip(groups, COLOURS, strict=False):
        points = [(row.position, cell) for row, cell in zip(rows, cells, strict=True) if row.group == group]
        known = [(position, cell.mean) for position, cell in points if cell.mean is not None]
        if known:
            axes.plot(*zip(*known, strict=True), "-", color=colour, label=group)
        for position, cell in points:
            axes.plot([position] * len(cell.scores), cell.scores, "o", color=colour, markersize=4)
    axes.set_xlabel("pretraining steps")
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(percent_ticks())
    axes.grid(alpha=0.25)
    axes.legend(fontsize="small")


def _draw_baseline(axes: Axes, baseline: tuple[str, float] | None, *, vertical: bool) -> None:
    if baseline:
        name, score = baseline
        draw = axes.axvline if vertical else axes.axhline
        draw(score, color="black", linestyle=":", linewidth=1.2)
        note = f"dotted: {name}, {100 * score:.1f}"
        axes.set_xlabel("; ".join(filter(None, [axes.get_xlabel(), note])), fontsize="small")
