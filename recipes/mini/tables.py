"""Tables of the page of results: rows of cells, from the records of `recipes.mini.scores`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from export.html_report import describe_speed
from recipes.mini.heldout_eval import TOP
from recipes.mini.scores import BEFORE, RUNTIMES, cost, last_progress
from recipes.mini.tasks import CLOZE, DISTILLED, EMBED, TASKS, DistilledTask, MiniTask, all_trainings, is_distilled
from tasks.bundle.machine import summarize_machine
from tasks.bundle.model_directory import read_model_directory
from training.loop.run_directory import METRICS_FILE, read_metrics
from training.reports.grid_report import CONTRAST_ROW, TEACHER_ROW

Row = Sequence[str]
Record = Mapping[str, Any]
_NONE = "-"


_METRICS = {"f1_1": "F1", "f1": "F1", "matthews": "Matthews", "spearman": "Spearman", "accuracy": "accuracy"}


def percent(score: float) -> str:
    """Return a score in percent, with one digit."""
    return f"{100 * score:.1f}"


# Shipped models


def shipped_rows(records: Mapping[str, Record]) -> Iterator[Row]:
    """Yield a row for each score of the shipped models: baseline, fine-tuned only, teacher, and two runtimes."""
    yield "model, score", "baseline", "fine-tuned only", "teacher", RUNTIMES[0], RUNTIMES[-1]
    for task in DISTILLED:
        if task.name in records:
            yield from _shipped_rows(task, records[task.name])


def _shipped_rows(task: DistilledTask, record: Record) -> Iterator[Row]:
    training = record["training"]
    teacher = next((scores for row, scores in training.items() if row.startswith(TEACHER_ROW)), None)
    alone = training.get(CONTRAST_ROW)
    for split, found in _splits(task, record).items():
        yield (
            f"{task.name}: {task.data_name} {split}, {_METRICS[task.metric]}",
            percent(found["baseline"]["scores"][task.metric]),
            percent(alone[task.metric]) if alone and split == "dev" else _NONE,
            percent(teacher[task.metric]) if teacher and split == "dev" else _NONE,
            *(percent(found[runtime]["scores"][task.metric]) for runtime in (RUNTIMES[0], RUNTIMES[-1])),
        )
    for name, found in record["beyond"].items():
        title, without, score = _heldout(name, found)
        yield f"{task.name}: {title}", without, _NONE, _NONE, _NONE, score


def _splits(task: DistilledTask, record: Record) -> Mapping[str, Record]:
    if task.name != EMBED:
        found: Mapping[str, Record] = record["ways"]
        return found
    baseline = {"scores": record["word overlap"]}
    return {"dev": {"baseline": baseline} | {runtime: {"scores": record[runtime]} for runtime in RUNTIMES}}


def _heldout(name: str, found: Record) -> tuple[str, str, str]:
    """Return title, baseline and score of a result of `recipes.mini.heldout_eval`."""
    if name == "search":
        title = f"SQuAD v1.1 dev, paragraph among {TOP} of {found['num_paragraphs']:,}"
        return title, f"{percent(found['bm25'])} (BM25)", percent(found["recall"])
    if name == "ranking":
        title = f"paragraph that answers, of {TOP} of an article, mean reciprocal rank"
        return title, f"{percent(found['bm25'])} (BM25)", percent(found["mrr"])
    if name == "best span":
        return "SQuAD v1.1 dev, F1 of the best span", _NONE, percent(found["f1"])
    if name == "reliability":
        return "SQuAD v2.0 dev, calibration error of the score", _NONE, percent(found["error"])
    if "correct" in found:
        title = "own pairs of similar questions" if name == "contrast" else "own everyday sentences"
        return title, _NONE, f"{found['correct']} of {found['of']}"
    return "names in own running text, F1", _NONE, percent(found["f1"])


def speed_rows(models: Path) -> Iterator[Row]:
    """Yield a row per shipped model, with the speed measured by the autotuner."""
    yield "model", "precision", "MB, all files", "speed", "measured on"
    for name in sorted(task.name for task in DISTILLED):
        if (place := models / name / "1").exists():
            manifest = read_model_directory(place).manifest
            made = manifest.provenance
            size = sum(item.stat().st_size for item in place.rglob("*") if item.is_file()) / 1e6
            machine = summarize_machine(made["machine"])
            yield name, made["graph"]["name"], f"{size:.1f}", describe_speed(manifest), machine


def vector_rows(records: Mapping[str, Record]) -> Iterator[Row]:
    """Yield Spearman's correlation of cosines with STS-B's scores, in each runtime."""
    columns = [*BEFORE, *RUNTIMES]
    yield "", "pairs", *columns
    if record := records.get(EMBED):
        scores = (percent(record[column]["spearman"]) for column in columns)
        yield "Spearman", f"{record['num_examples']:,}", *scores


def same_rows(records: Mapping[str, Record]) -> Iterator[Row]:
    """Yield the number of dev predictions that equal PyTorch's, or the largest difference of scores."""
    yield "task", "examples", *RUNTIMES[1:]
    shipped = [(f"`{task.name}`", records[task.name]) for task in DISTILLED if task.name in records]
    for title, record in [*shipped, *((task.title, record) for task, record in _scored(records))]:
        if found := record.get("ways", {}).get("dev"):
            counts = (
                f"{each['same']:,}" if "same" in each else f"within {each['largest_difference']:.2g}"
                for each in (found[runtime] for runtime in RUNTIMES[1:])
            )
            yield title, f"{found['num_examples']:,}", *counts


# bertline-mini


def pretraining_rows(runs: Iterable[Path]) -> Iterator[Row]:
    """Yield a row per stage: tokens, time, speed, and the final masked LM scores on dev."""
    yield "", "tokens", "hours", "tokens/s", "loss on dev", "accuracy"
    for run in runs:
        last = last_progress(run)
        assert last, run
        dev = next(line for line in reversed(read_metrics(run)) if "eval_mlm_loss" in line)
        yield (
            run.name,
            f"{last['num_tokens'] / 1e6:.1f}M",
            f"{last['elapsed_s'] / 3600:.2f}",
            f"{last['num_tokens'] / last['elapsed_s']:,.0f}",
            f"{dev['eval_mlm_loss']:.3f}",
            percent(dev["eval_mlm_accuracy"]),
        )


def _scored(records: Mapping[str, Record]) -> Iterator[tuple[MiniTask, Record]]:
    """Yield the tasks with scores."""
    return ((task, records[task.name]) for task in TASKS if task.name in records)


def score_rows(records: Mapping[str, Record], split: str) -> Iterator[Row]:
    """Yield a row per task: baseline, mean over seeds, and the best run's model in each runtime."""
    seeds = ("not pretrained", "fine-tuned, seeds") if split == "dev" else ()
    yield "task, score", "examples", "baseline", *seeds, *RUNTIMES
    for task, record in _scored(records):
        if found := record["ways"].get(split):
            yield (
                f"{task.title}: {_METRICS[task.metric]}",
                f"{found['num_examples']:,}",
                f"{percent(found['baseline']['scores'][task.metric])} ({found['baseline']['name']})",
                *(seed_cells(record["grid"]) if seeds else ()),
                *(percent(found[runtime]["scores"][task.metric]) for runtime in RUNTIMES),
            )


def seed_cells(grid: Mapping[str, Any]) -> list[str]:
    """Return mean and deviation without pretraining, and of the best run's setting."""
    best = next(row for row in grid["settings"] if any(run["name"] == grid["best"]["name"] for run in row["runs"]))
    return [_mean(grid["unpretrained"]), _mean(best)]


def _mean(row: Mapping[str, Any]) -> str:
    if row["mean"] is None:
        return f"none of {row['num_seeds']} ended"
    deviation = "" if row["standard_deviation"] is None else f" ± {100 * row['standard_deviation']:.1f}"
    return f"{percent(row['mean'])}{deviation} ({sum(run['score'] is not None for run in row['runs'])})"


# Cost


def cost_rows(runs: Sequence[Path], records: Mapping[str, Record]) -> Iterator[Row]:
    """Yield runs, hours and tokens of each kind of training."""
    yield "training", "runs", "hours", "tokens", "tokens/s"
    cloze = {json.dumps(record["cloze"]): record["cloze"] for record in records.values() if "cloze" in record}
    costs = {
        "Pretraining": [cost([run / METRICS_FILE for run in runs])],
        all_trainings()[CLOZE].title: [record["cost"] for record in cloze.values()],
        "Fine-tuning": [record["cost"] for name, record in records.items() if not is_distilled(name)],
        "Distillation": [record["cost"] for name, record in records.items() if is_distilled(name)],
    }
    for title, made in costs.items():
        num_runs, hours, tokens = (sum(each[key] for each in made) for key in ("num_runs", "hours", "num_tokens"))
        if hours:
            yield title, f"{num_runs}", f"{hours:.2f}", f"{tokens / 1e6:.1f}M", f"{tokens / hours / 3600:,.0f}"
