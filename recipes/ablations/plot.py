"""Plots of the tables: a bar for each row with a dot for each seed, or curves over steps; all in percent."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes

from recipes.ablations.results import CellScores, Result, format_cell
from recipes.ablations.tables import LABELLED_DATA
from training.reports.plot import COLOURS, curve_name, label_rows, note_row, percent_ticks, plt, save_figure


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
