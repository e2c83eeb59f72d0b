"""What a grid of fine-tuning runs found: a row a setting, as a table, as JSON-compatible values and as a picture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from training.reports.plot import plt, save_figure


@dataclass(frozen=True)
class Setting:
    """What the runs of a row have in common."""

    learning_rate: float
    global_batch_size: int
    num_epochs: float

    def __str__(self) -> str:
        return f"{self.learning_rate:g}, batch {self.global_batch_size}, epochs {self.num_epochs:g}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a run."""

    name: str
    """Of its directory."""
    setting: Setting
    seed: int
    scores: Mapping[str, Any]
    """Of its task card; empty when the run stopped."""
    error: str | None = None
    """What stopped it."""

    def score(self, metric: str) -> float | None:
        """The score on dev; None when there is none, or it is not a number."""
        score = self.scores.get("dev", {}).get(metric, math.nan)
        return None if math.isnan(score) else score

    def baseline(self) -> tuple[str, Mapping[str, float]]:
        """Name and scores of what does without any model: the row that is not of dev, as a task card has it."""
        rows = {name: row for name, row in self.scores.items() if isinstance(row, Mapping)}
        return next((name, row) for name, row in rows.items() if not name.startswith("dev"))

    def failure(self, metric: str) -> str | None:
        """Why the run counts as failed: it stopped, or is no better than the baseline.

        Source: "degenerate results" in section 4.1 of the BERT paper; section 3 of Mosbach et al. 2021.
        """
        if self.error:
            return self.error
        name, scores = self.baseline()
        score = self.score(metric)
        return None if score is not None and score > scores[metric] else f"{metric} is not above {name}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """The runs of a setting: mean, sample standard deviation, best and worst score of those that came to an end."""

    setting: Setting
    mean: float | None
    standard_deviation: float | None
    best: float | None
    min: float | None
    num_seeds: int
    num_failed: int
    runs: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Report:
    """The whole grid."""

    task: str
    metric: str
    num_dev_examples: int
    baseline: Mapping[str, float]
    """What does without any model, and its score."""
    settings: Sequence[Row]
    unpretrained: Row | None
    """The best setting from random weights."""
    best: Mapping[str, Any]
    """The run with the best score."""
    num_settings: int
    num_runs: int
    selection: str
    """What the best was chosen among."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON-compatible values."""
        return asdict(self)


def metric_of(outcome: Outcome, wanted: str | None) -> str:
    """The metric to go by: the one wanted, or the first of the task.

    Raises:
        ValueError: when the task has no such score.
    """
    names = list(outcome.scores["dev"])
    if wanted is not None and wanted not in names:
        raise ValueError(f"no score `{wanted}` on dev; --metric is one of: {', '.join(names)}")
    return wanted or names[0]


def best_outcome(outcomes: Sequence[Outcome], metric: str) -> Outcome:
    """The run with the best score on dev; of equal ones that with the smallest learning rate, then seed."""

    def rank(outcome: Outcome) -> tuple[float, float, int]:
        score = outcome.score(metric)
        return -math.inf if score is None else score, -outcome.setting.learning_rate, -outcome.seed

    return max(outcomes, key=rank)


def report(task: str, outcomes: Sequence[Outcome], unpretrained: Sequence[Outcome], metric: str) -> Report:
    """Put the outcomes of all runs together; at least one of them has scores."""
    settings = list(dict.fromkeys(outcome.setting for outcome in outcomes))
    best = best_outcome(outcomes, metric)
    name, scores = best.baseline()
    num_settings, num_runs = len(settings), len(outcomes)
    return Report(
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
        f"{num_runs // num_settings}), so its score on dev is optimistic; take other data to judge it",
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


def format_report(found: Report) -> str:
    """A table: a row a setting, scores in percent; the best run's setting is marked."""
    rows = {f"learning rate {row.setting}": row for row in found.settings}
    if found.unpretrained:
        rows["the best from random weights"] = found.unpretrained
    (baseline, score), width = next(iter(found.baseline.items())), max(map(len, rows))
    heading = f"{found.metric} on {found.num_dev_examples:,} dev examples, percent"
    lines = [heading, " " * width + "".join(f"{name:>8}" for name in (*_COLUMNS, "seeds", "failed"))]
    for label, row in rows.items():
        cells = "".join(f"{_percent(getattr(row, name)):>8}" for name in _COLUMNS.values())
        is_best = not found.best["failure"] and any(run["name"] == found.best["name"] for run in row.runs)
        mark = "  <- best" if is_best else ""
        lines.append(f"{label:<{width}}{cells}{row.num_seeds:>8}{row.num_failed or '-':>8}{mark}")
    lines.append(f"{baseline:<{width}}{_percent(score):>8}")
    for row in rows.values():
        lines += [f"failed: {run['name']}: {run['failure']}" for run in row.runs if run["failure"]]
    return "\n".join(lines)


def _percent(score: float | None) -> str:
    return "-" if score is None else f"{100 * score:.2f}"


def plot_report(found: Report, path: Path) -> None:
    """Draw mean and standard deviation by setting, seeds as dots (crosses where failed), and what they stand beside."""
    figure, axes = plt.subplots(figsize=(max(7.0, 3 + 1.1 * len(found.settings)), 4.5), layout="constrained")
    if found.unpretrained and found.unpretrained.mean is not None:
        mean, deviation = found.unpretrained.mean, found.unpretrained.standard_deviation or 0.0
        axes.axhspan(mean - deviation, mean + deviation, color="tab:orange", alpha=0.15)
        axes.axhline(mean, color="tab:orange", label="the best from random weights")
    for name, score in found.baseline.items():
        axes.axhline(score, color="black", linestyle=":", label=name)
    _draw_settings(axes, found.settings)
    axes.set_xticks(range(len(found.settings)), [_tick(row) for row in found.settings], fontsize="small")
    axes.set_xlim(-0.5, len(found.settings) - 0.5)
    axes.set_xlabel("learning rate, batch size, epochs")
    axes.set_ylabel(f"{found.metric.replace('_', ' ')} on dev")
    axes.grid(alpha=0.3, axis="y")
    axes.legend(fontsize="small")
    save_figure(figure, path)


def _draw_settings(axes: Axes, rows: Sequence[Row]) -> None:
    means = [(place, row.mean, row.standard_deviation or 0.0) for place, row in enumerate(rows) if row.mean is not None]
    if means:
        places, centres, deviations = zip(*means, strict=True)
        label = "mean and standard deviation"
        axes.errorbar(places, centres, deviations, fmt="s", color="tab:blue", capsize=6, label=label)
    seeds = [(place + 0.15, run) for place, row in enumerate(rows) for run in row.runs if run["score"] is not None]
    for failed, marker, color, label in ((False, "o", "tab:blue", "a seed"), (True, "x", "tab:red", "a failed seed")):
        points = [(place, run["score"]) for place, run in seeds if (run["failure"] is not None) == failed]
        if points:
            axes.plot(*zip(*points, strict=True), marker, color=color, alpha=0.6, markersize=5, label=label)


def _tick(row: Row) -> str:
    return str(row.setting).replace(", ", "\n") + (f"\n{row.num_failed} failed" if row.num_failed else "")
