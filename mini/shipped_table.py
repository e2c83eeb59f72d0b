"""Table of the shipped models: scores beside a baseline, the labels alone, the teacher, and what was wanted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mini.beyond import TOP
from mini.cells import percent, score_name
from mini.distilled import DISTILLED, EMBED, DistilledTask
from mini.scores import RUNTIMES
from training.reports.grid_report import CONTRAST_ROW, TEACHER_ROW

Record = Mapping[str, Any]
_NONE = "-"


def shipped_rows(records: Mapping[str, Record]) -> Iterable[Sequence[str]]:
    """Yield a row for each score of the shipped models, in percent."""
    yield "model, score", "without a model", "labels alone", "teacher", RUNTIMES[0], RUNTIMES[-1], "wanted"
    for task in DISTILLED:
        if task.name in records:
            yield from _rows(task, records[task.name])


def _rows(task: DistilledTask, record: Record) -> Iterator[Sequence[str]]:
    training = record["training"]
    teacher = next(scores for row, scores in training.items() if row.startswith(TEACHER_ROW))
    alone = training.get(CONTRAST_ROW)
    if task.scored_on:
        without, score = training["always no answer"], training["dev"]
        rest = [percent(scores[task.metric]) if scores else _NONE for scores in (without, alone, teacher, score)]
        yield f'{task.name}: SQuAD v2.0 dev, F1, with "no answer"', *rest, "not served", "60 / 66"
    for split, found in _splits(task, record).items():
        on_dev = split == "dev" and not task.scored_on
        yield (
            f"{task.name}: {task.data_name} {split}, {score_name(task)}",
            percent(found["baseline"]["scores"][task.metric]),
            percent(alone[task.metric]) if alone and on_dev else _NONE,
            percent(teacher[task.metric]) if on_dev else _NONE,
            *(percent(found[runtime]["scores"][task.metric]) for runtime in (RUNTIMES[0], RUNTIMES[-1])),
            f"{task.target.reach:g} / {task.target.stretch:g}" if split == task.target.split else _NONE,
        )
    for name, found in record["beyond"].items():
        title, without, score = _beyond(name, found)
        yield f"{task.name}: {title}", without, _NONE, _NONE, _NONE, score, task.wanted_beyond


def _splits(task: DistilledTask, record: Record) -> Mapping[str, Record]:
    if task.name != EMBED:
        found: Mapping[str, Record] = record["ways"]
        return found
    baseline = {"scores": record["word overlap"]}
    return {"dev": {"baseline": baseline} | {runtime: {"scores": record[runtime]} for runtime in RUNTIMES}}


def _beyond(name: str, found: Record) -> tuple[str, str, str]:
    """Return title, score without a model, and score of a result of `mini.beyond`."""
    if name == "search":
        title = f"SQuAD v1.1 dev, paragraph among {TOP} of {found['num_paragraphs']:,}"
        return title, f"{percent(found['bm25'])} (BM25)", percent(found["recall"])
    if name == "ranking":
        title = f"paragraph that answers, of {TOP} of an article, mean reciprocal rank"
        return title, f"{percent(found['bm25'])} (BM25)", percent(found["mrr"])
    if "correct" in found:
        return "own everyday sentences", _NONE, f"{found['correct']} of {found['of']}"
    return "names in own running text, F1", _NONE, percent(found["f1"])
