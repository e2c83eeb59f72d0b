"""Write docs/results.md and its pictures from what the line has found.

    python -m mini.results --data DATA --out build/mini

The words are those of mini/results.md.j2; every number in a table is read from the runs and from OUT/scores.json.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from mini.line import EMBED, LEGS, NAME, Arguments, Line
from mini.tasks import TASKS, MiniTask
from tasks.files import atomic_write
from tasks.json_files import read_json
from training.command import command, parse
from training.loop.run import read_metrics
from training.reports.plot import plot_runs

PAGE = Path("docs/results.md")
CURVES = Path("docs/results/pretraining.png")
WAYS = ("PyTorch", "ONNX fp32", "ONNX int8", "served int8")
Row = Sequence[str]


@command
def main() -> None:
    """Command line."""
    line = Line(parse(Arguments, "mini.results", __doc__))
    found = read_json(line.out / "scores.json")
    CURVES.parent.mkdir(parents=True, exist_ok=True)
    plot_runs({run.name: run for run in pretraining_runs(line)}, CURVES)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined, autoescape=False
    )
    page = environment.get_template("results.md.j2").render(
        pretraining=table(pretraining_rows(line)),
        dev=table(score_rows(found, "dev")),
        test=table(score_rows(found, "test")),
        same=table(same_rows(found)),
        vectors=table(vector_rows(found[EMBED])),
        cost=table(cost_rows(line)),
    )
    atomic_write(PAGE, (page.rstrip() + "\n").encode())
    print(f"{PAGE}, {CURVES}")


def table(rows: Iterable[Row]) -> str:
    """Markdown; the first row is the heading, the first column left, the others right."""
    heading, *others = rows
    rule = ["---", *["---:"] * (len(heading) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (heading, rule, *others))


def pretraining_runs(line: Line) -> list[Path]:
    """The legs of pretraining in order."""
    return [line.out / (f"{NAME}-{n}" if n < len(LEGS) else NAME) for n in range(1, len(LEGS) + 1)]


def pretraining_rows(line: Line) -> Iterable[Row]:
    """A row a leg: tokens, time, speed, and the masked LM on dev in the end."""
    yield "", "tokens", "hours", "tokens/s", "loss on dev", "accuracy"
    for run in pretraining_runs(line):
        lines = read_metrics(run)
        last = next(item for item in reversed(lines) if "num_tokens" in item)
        dev = next(item for item in reversed(lines) if "eval_mlm_loss" in item)
        yield (
            run.name,
            f"{last['num_tokens'] / 1e6:.1f}M",
            f"{last['elapsed_s'] / 3600:.2f}",
            f"{last['num_tokens'] / last['elapsed_s']:,.0f}",
            f"{dev['eval_mlm_loss']:.3f}",
            percent(dev["eval_mlm_accuracy"]),
        )


def score_rows(found: Mapping[str, Any], split: str) -> Iterable[Row]:
    """A row a task: what does without pretraining, the seeds, and the best seed's model each way."""
    yield (
        *("task, score", "examples", "without a model", "not pretrained", "fine-tuned, seeds"),
        *WAYS,
    )
    for task in TASKS:
        record = found[task.name]["ways"].get(split)
        if record is not None:
            seeds = seed_cells(found[task.name]["grid"]) if split == "dev" else ["", ""]
            yield (
                f"{task.title}: {score_name(task)}",
                f"{record['num_examples']:,}",
                percent(record["baseline"]["scores"][task.metric]),
                *seeds,
                *(percent(record[way]["scores"][task.metric]) for way in WAYS),
            )


def seed_cells(grid: Mapping[str, Any]) -> list[str]:
    """Mean and deviation of the network that was not pretrained, and of the best setting's seeds."""
    best = next(row for row in grid["settings"] if any(run["name"] == grid["best"]["name"] for run in row["runs"]))
    return [_mean(grid["unpretrained"]), _mean(best)]


def _mean(row: Mapping[str, Any]) -> str:
    deviation = row["standard_deviation"]
    return percent(row["mean"]) + ("" if deviation is None else f" ± {100 * deviation:.1f}") + f" ({row['num_seeds']})"


def same_rows(found: Mapping[str, Any]) -> Iterable[Row]:
    """On how many dev examples each way says what PyTorch says, and how fast it is."""
    yield "task", "examples", *(f"{way}: same" for way in WAYS[1:]), *(f"{way}: examples/s" for way in WAYS)
    for task in TASKS:
        record = found[task.name]["ways"]["dev"]
        count = record["num_examples"]
        yield (
            task.title,
            f"{count:,}",
            *(f"{record[way]['same']:,}" for way in WAYS[1:]),
            *(f"{count / record[way]['seconds']:,.0f}" for way in WAYS),
        )


def vector_rows(record: Mapping[str, Any]) -> Iterable[Row]:
    """Spearman's correlation of cosines with STS-B's scores, each way."""
    ways = ["word overlap", "before", *WAYS]
    yield "", "pairs", *ways
    yield (
        "Spearman",
        f"{record['num_examples']:,}",
        *(percent(record[way]["spearman"]) for way in ways),
    )


def cost_rows(line: Line) -> Iterable[Row]:
    """Hours of the two cores for each stage's runs."""
    yield "stage", "runs", "hours"
    yield "pretraining", str(len(LEGS)), f"{sum(map(_hours, pretraining_runs(line))):.2f}"
    for task in TASKS:
        runs = [path.parent for path in sorted((line.out / task.name).glob("*/metrics.jsonl"))]
        yield f"fine-tuning: {task.title}", str(len(runs)), f"{math.fsum(map(_hours, runs)):.2f}"


def _hours(run: Path) -> float:
    return max((item["elapsed_s"] for item in read_metrics(run) if "elapsed_s" in item), default=0.0) / 3600


def score_name(task: MiniTask) -> str:
    """What the score of a task is called."""
    return {"f1_1": "F1", "f1": "F1", "matthews": "Matthews", "spearman": "Spearman"}.get(task.metric, task.metric)


def percent(score: float) -> str:
    """With one digit."""
    return f"{100 * score:.1f}"


if __name__ == "__main__":
    main()
