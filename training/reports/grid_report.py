"""Report of a grid of fine-tuning runs, a row for each setting: as text, as JSON-compatible values, and as a plot."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasks.metrics import is_loss
from training.reports.tables import markdown_table

TEACHER_ROW, CONTRAST_ROW = "teacher, ", "fine-tuned"
"""Rows of scores in a distillation: those of a teacher begin with the first; the second learnt only the labels."""


@dataclass(frozen=True)
class Setting:
    """Setting of the runs of a row."""

    learning_rate: float
    global_batch_size: int
    num_epochs: float

    def __str__(self) -> str:
        return f"{self.learning_rate:g}, batch {self.global_batch_size}, epochs {self.num_epochs:g}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a run."""

    name: str
    """Name of the run directory."""
    setting: Setting
    seed: int
    scores: Mapping[str, Any]
    """Scores of the task card; empty if the run failed."""
    error: str | None = None
    """Error that stopped the run."""

    def score(self, metric: str) -> float | None:
        """Return the score on dev; None if it is missing or NaN."""
        score = self.scores.get("dev", {}).get(metric, math.nan)
        return None if math.isnan(score) else score

    def failure(self, metric: str) -> str | None:
        """Return why the run counts as failed: it stopped, or is not better than the baseline. None if it does not."""
        return self.error or below_baseline(self.scores, metric)


def baseline_of(scores: Mapping[str, Any]) -> tuple[str, Mapping[str, float]]:
    """Return name and scores of the baseline in the scores of a task card."""
    others = ("dev", TEACHER_ROW, CONTRAST_ROW)
    rows = ((name, row) for name, row in scores.items() if isinstance(row, Mapping))
    return next((name, row) for name, row in rows if not name.startswith(others))


def below_baseline(scores: Mapping[str, Any], metric: str) -> str | None:
    """Return a sentence if the score on dev is not above the baseline, else None.

    Source: "degenerate results" in section 4.1 of the BERT paper; section 3 of Mosbach et al. 2021.
    """
    name, baseline = baseline_of(scores)
    score = scores["dev"].get(metric, math.nan)
    return None if score > baseline[metric] or score == 1 else f"{metric} is not above {name}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Runs of a setting: mean, sample standard deviation, best and worst score of finished runs."""

    setting: Setting
    mean: float | None
    standard_deviation: float | None
    best: float | None
    min: float | None
    num_seeds: int
    num_failed: int
    runs: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class GridReport:
    """Report of a whole grid."""

    task: str
    metric: str
    num_dev_examples: int
    baseline: Mapping[str, float]
    """Name and score of the baseline."""
    settings: Sequence[Row]
    unpretrained: Row | None
    """Best setting, trained from random weights."""
    best: Mapping[str, Any]
    """Run with the best score."""
    num_settings: int
    num_runs: int
    selection: str
    """Sentence about the choice of the best run."""


def metric_of(scores: Mapping[str, float], name: str | None) -> str:
    """Return the metric that chooses the best run.

    Args:
        name: name of the metric; None for the first of the task.

    Raises:
        ValueError: if the task has no such score.
    """
    names = [score for score in scores if not is_loss(score)]
    if name is not None and name not in names:
        raise ValueError(f"no score `{name}` on dev; --metric is one of: {', '.join(names)}")
    return name or names[0]


def best_outcome(outcomes: Sequence[Outcome], metric: str) -> Outcome:
    """Return the run with the best score on dev; of equal ones, the smallest learning rate, then seed."""

    def rank(outcome: Outcome) -> tuple[float, float, int]:
        score = outcome.score(metric)
        return -math.inf if score is None else score, -outcome.setting.learning_rate, -outcome.seed

    return max(outcomes, key=rank)


def report(task: str, outcomes: Sequence[Outcome], unpretrained: Sequence[Outcome], metric: str) -> GridReport:
    """Create the report; at least one outcome must have scores."""
    settings = list(dict.fromkeys(outcome.setting for outcome in outcomes))
    best = best_outcome(outcomes, metric)
    name, scores = baseline_of(best.scores)
    num_settings, num_runs = len(settings), len(outcomes)
    return GridReport(
        task=task,
        metric=metric,
        num_dev_examples=best.scores["num_dev_examples"],
        baseline={name: scores[metric]},
        settings=[
            _row([outcome for outcome in outcomes if outcome.setting == setting], metric) for setting in settings
        ],
        unpretrained=_row(unpretrained, metric) if unpretrained else None,
        best=_run(best, metric) | asdict(best.setting),
        num_settings=num_settings,
        num_runs=num_runs,
        selection=f"chosen by {metric} on dev among {num_runs} runs (settings x seeds: {num_settings} x "
        f"{num_runs // num_settings}), so its score on dev is optimistic; evaluate it on other data",
    )


def _row(outcomes: Sequence[Outcome], metric: str) -> Row:
    runs = [_run(outcome, metric) for outcome in outcomes]
    scores = [run["score"] for run in runs if run["score"] is not None]
    return Row(
        setting=outcomes[0].setting,
        mean=statistics.fmean(scores) if scores else None,
        standard_deviation=statistics.stdev(scores) if len(scores) > 1 else None,
        best=max(scores, default=None),
        min=min(scores, default=None),
        num_seeds=len(runs),
        num_failed=sum(run["failure"] is not None for run in runs),
        runs=runs,
    )


def _run(outcome: Outcome, metric: str) -> dict[str, Any]:
    return {
        "name": outcome.name,
        "seed": outcome.seed,
        "score": outcome.score(metric),
        "dev": dict(outcome.scores.get("dev", {})),
        "failure": outcome.failure(metric),
    }


_COLUMNS = {"mean": "mean", "sd": "standard_deviation", "best": "best", "min": "min"}


def format_report(found: GridReport) -> str:
    """Format a Markdown table with a row for each setting and scores in percent; the best run's setting is marked."""
    rows = [(found.metric, *_COLUMNS, "seeds", "failed")]
    failures = []
    for label, row in _labelled(found).items():
        cells = [_percent(getattr(row, name)) for name in _COLUMNS.values()]
        name = f"{label} (best)" if _is_best(found, row) else label
        rows.append((name, *cells, str(row.num_seeds), str(row.num_failed or "-")))
        failures += [f"failed: {run['name']}: {run['failure']}" for run in row.runs if run["failure"]]
    rows += [(name, _percent(score), *[""] * 5) for name, score in found.baseline.items()]
    return "\n".join([f"percent, {found.num_dev_examples:,} dev examples", markdown_table(rows), *failures])


def _labelled(found: GridReport) -> dict[str, Row]:
    """Return all rows by label."""
    rows = {f"learning rate {row.setting}": row for row in found.settings}
    return rows | ({"the best from random weights": found.unpretrained} if found.unpretrained else {})


def _is_best(found: GridReport, row: Row) -> bool:
    """Return whether a row has the best run, and the run did not fail."""
    return not found.best["failure"] and any(run["name"] == found.best["name"] for run in row.runs)


def _percent(score: float | None) -> str:
    return "-" if score is None else f"{100 * score:.2f}"


def plot_report(found: GridReport, path: Path) -> None:
    """Plot a row for each setting: mean and deviation, a dot for each seed, a cross if it failed; and the baseline."""
    from training.reports import plot  # matplotlib takes half a second, and most users of this module plot nothing

    rows = _labelled(found)
    figure, axes = plot.plt.subplots(figsize=(9.0, 1.5 + 0.45 * len(rows)), layout="constrained")
    for name, score in found.baseline.items():
        axes.axvline(score, color="black", linestyle=":", label=f"{name}, {_percent(score)}")
    good, failed = plot.COLOURS[0], plot.FAILED
    means = [
        (row.mean, y, row.standard_deviation or 0.0) for y, row in enumerate(rows.values()) if row.mean is not None
    ]
    if means:
        centres, ys, deviations = zip(*means, strict=True)
        label = "mean and standard deviation"
        axes.errorbar(centres, ys, xerr=deviations, fmt="s", color=good, markersize=4, capsize=4, label=label)
    seeds = [(run, y + 0.22) for y, row in enumerate(rows.values()) for run in row.runs if run["score"] is not None]
    for has_failed, marker, colour, label in ((False, "o", good, "a seed"), (True, "x", failed, "a failed seed")):
        points = [(run["score"], y) for run, y in seeds if (run["failure"] is not None) == has_failed]
        if points:
            axes.plot(*zip(*points, strict=True), marker, color=colour, alpha=0.7, markersize=5, label=label)
    for number, row in enumerate(rows.values()):
        scores = " ± ".join(_percent(score) for score in (row.mean, row.standard_deviation) if score is not None)
        note = ", ".join(filter(None, [scores, f"{row.num_failed} failed" if row.num_failed else ""]))
        plot.note_row(axes, number, note + ("  (best)" if _is_best(found, row) else ""))
    plot.label_rows(axes, list(rows))
    axes.set_xlabel(f"{plot.curve_name(found.metric)} on dev, percent")
    axes.xaxis.set_major_formatter(plot.percent_ticks())
    figure.legend(loc="outside lower center", ncols=4, fontsize="small", frameon=False)
    plot.save_figure(figure, path)
