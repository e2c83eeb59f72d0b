"""Score the model of a task in four runtimes: PyTorch, ONNX fp32, ONNX int8, and int8 served over gRPC.

    python -m recipes.mini.scores sst-2 --data DATA --out build/mini

Settings were chosen on dev sets; test sets are read only here. Writes OUT/sst-2/scores.json, which also contains the
result of the grid and the cost of training.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from bertline import Client
from recipes.mini.data import SQUAD_DEV
from recipes.mini.heldout_eval import heldout_scores
from recipes.mini.pipeline import STS, STS_COLUMNS, Arguments, Pipeline, check_names, commands_of
from recipes.mini.tasks import CLOZE, EMBED, TEACHER_SUFFIX, DistilledTask, MiniTask, task_names, task_of
from recipes.predictions import Predict, local_runtimes, num_same, score_predictions, served_predictions
from recipes.stage import one_line_errors, serve
from tasks.bundle.files import atomic_write
from tasks.bundle.model_directory import read_model_directory
from tasks.text.json_files import read_json
from training.checkpoint.evaluation import load_for_evaluation
from training.checkpoint.reader import load_tokenizer
from training.checkpoint.task_card import TaskCard, read_task_card
from training.checkpoint.weights import checkpoint_digest
from training.command_line.command import command, parse
from training.command_line.progress_bar import ProgressBar
from training.data.columns import dev_columns, existing_columns
from training.data.examples import Examples
from training.grid import REPORT_FILE
from training.loop.run_directory import METRICS_FILE, read_metrics
from training.objectives.labelled import read_examples, read_similarities
from training.objectives.registry import best_baseline
from training.objectives.similarity import vector_scores
from training.reports.grid_report import CONTRAST_ROW

BEFORE = ("word overlap", "mean of word embeddings", "before, cls", "before, mean")
"""Baselines of vectors, with their names in its task card."""
RUNTIMES = ("PyTorch", "ONNX fp32", "ONNX int8", "served int8")
"""Runtimes of a model."""


@dataclass(frozen=True, kw_only=True)
class ScoresArguments(Arguments):
    """Score the model of a task."""

    name: Annotated[str, tyro.conf.Positional]
    """Name of the task, such as sst-2 or embed."""
    only: tyro.conf.Suppress[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names([self.name], task_names())


@command
@one_line_errors()
def main() -> None:
    """Command line."""
    arguments = parse(ScoresArguments, "recipes.mini.scores", __doc__)
    pipeline, name = Pipeline(arguments), arguments.name
    task, data = task_of(name), pipeline.digests(name)
    _check_origins(pipeline, name, data)
    with serve(pipeline.models(name, "int8")) as target, Client(target, timeout=600) as client:
        found = score_vectors(pipeline, client) if name == EMBED else score(pipeline, task, client)
        if isinstance(task, DistilledTask):
            alone = read_task_card(pipeline.out / name / CONTRAST_ROW / "checkpoint")
            contrast = {CONTRAST_ROW: alone.scores["dev"]} if alone else {}
            found["training"] = {**contrast, **_card(pipeline, name).scores}
            found["beyond"] = heldout_scores(name, client, [pipeline.data / path for path in SQUAD_DEV])
    found["pretrained"] = checkpoint_digest(pipeline.pretrained_for(name))
    found["commands"] = commands_of(name)
    found["data"] = data
    found |= {key: _card(pipeline, name).provenance[key] for key in ("recipe", "machine")}
    folders = (pipeline.out / name, pipeline.out / f"{name}{TEACHER_SUFFIX}")
    found["cost"] = cost(sorted(file for folder in folders for file in folder.glob(f"**/{METRICS_FILE}")))
    if CLOZE in task.trainings():
        card, spent = _card(pipeline, CLOZE), cost([pipeline.out / CLOZE / METRICS_FILE])
        found["cloze"] = {"scores": card.scores["dev"], "machine": card.provenance["machine"], "cost": spent}
    atomic_write(pipeline.scores(name), (json.dumps(found, indent=2) + "\n").encode())


def score(pipeline: Pipeline, task: MiniTask | DistilledTask, client: Client) -> dict[str, Any]:
    """Return the scores of the grid, if there is one, and of its best model in each runtime on dev and test."""
    found: dict[str, Any] = {"metric": task.metric}
    if isinstance(task, MiniTask):
        found["grid"] = read_json(pipeline.out / task.name / REPORT_FILE)
    found["ways"] = {}
    runtimes = _predict_by_runtime(pipeline, task.name, task.kind, client)
    for split, pattern in (("dev", task.dev), ("test", task.test)):
        if pattern is not None:
            found["ways"][split] = _score_split(pipeline, task, pipeline.path(pattern), runtimes)
    return found


def score_vectors(pipeline: Pipeline, client: Client) -> dict[str, Any]:
    """Return the correlation of cosines with the scores of STS-B dev, for the vectors and their baselines."""
    pairs = read_similarities(
        [pipeline.path(STS)], columns=STS_COLUMNS, tokenizer=load_tokenizer(pipeline.pretrained_for(EMBED))
    )
    before = {name: _card(pipeline, EMBED).scores[name] for name in BEFORE}
    runtimes = _predict_by_runtime(pipeline, EMBED, "embedding", client)
    after = {runtime: vector_scores(pairs, predictions) for runtime, predictions in runtimes.items()}
    return {"num_examples": len(pairs)} | before | after


def cost(files: Sequence[Path]) -> dict[str, Any]:
    """Return runs, hours and tokens of training, from metrics files."""
    ends = [end for file in files if (end := last_progress(file.parent))]
    return {
        "num_runs": len(ends),
        "hours": round(math.fsum(end["elapsed_s"] for end in ends) / 3600, 4),
        "num_tokens": sum(end["num_tokens"] for end in ends),
    }


def last_progress(run: Path) -> dict[str, Any] | None:
    """Return the last progress in a run's metrics; None if there is none."""
    return next((line for line in reversed(read_metrics(run)) if {"elapsed_s", "num_tokens"} <= line.keys()), None)


def _card(pipeline: Pipeline, name: str) -> TaskCard:
    card = read_task_card(pipeline.checkpoint(name))
    if card is None:
        raise ValueError(
            f"Bertline did not train `{pipeline.checkpoint(name)}`; remove `{pipeline.out / name}` to make it again"
        )
    return card


def _check_origins(pipeline: Pipeline, name: str, data: Mapping[str, str]) -> None:
    """Raise if a model does not come from the checkpoint, the checkpoint not from the pretrained one, or from the data.

    Args:
        data: current digests.
    """
    made = checkpoint_digest(pipeline.checkpoint(name))
    for precision in ("fp32", "int8"):
        manifest = read_model_directory(pipeline.model(name, precision)).manifest
        if manifest.provenance["checkpoint"]["sha256"] != made:
            raise ValueError(
                f"`{pipeline.model(name, precision)}` was not exported from `{pipeline.checkpoint(name)}`; remove it"
            )
    for each, training in task_of(name).trainings().items():
        if each.endswith(TEACHER_SUFFIX) and not pipeline.checkpoint(each).exists():
            continue  # the student was trained elsewhere
        made_from = _card(pipeline, each).provenance
        if not each.endswith(TEACHER_SUFFIX):  # a teacher may start from weights that were rounded on the way
            pipeline.check_origin(each, made_from["checkpoint"]["sha256"], pipeline.path(training.start))
        if other := [file for file, digest in made_from["data"].items() if digest not in data.values()]:
            raise ValueError(f"`{pipeline.out / each}` was made from another `{other[0]}`; remove it to make it again")


def _predict_by_runtime(pipeline: Pipeline, name: str, kind: str, client: Client) -> dict[str, Predict]:
    """Return a function for each runtime that predicts examples.

    Args:
        name: name of the task.
        kind: kind of the task, which selects the client method.
    """
    run = load_for_evaluation(pipeline.checkpoint(name))[1]
    directories = [pipeline.model(name, precision) for precision in ("fp32", "int8")]
    found = local_runtimes(run, *directories, chunk_size=256)
    return found | {RUNTIMES[-1]: partial(served_predictions, client, kind, name)}


def _score_split(
    pipeline: Pipeline, task: MiniTask | DistilledTask, path: Path, runtimes: Mapping[str, Predict]
) -> dict[str, Any]:
    """Return the scores in each runtime, and the agreement with PyTorch."""
    tokenizer = load_tokenizer(pipeline.pretrained_for(task.name))
    recipe = _card(pipeline, task.name).provenance["recipe"]

    def read(paths: Sequence[Path]) -> Examples:
        columns = existing_columns(paths, dev_columns(recipe))
        return read_examples(task.kind, paths, columns=columns, tokenizer=tokenizer)

    examples, known = read([path]), read([pipeline.path(name) for name in task.train])
    name, scores = best_baseline(task.kind, known, examples, tokenizer)
    found: dict[str, Any] = {"num_examples": len(examples), "baseline": {"name": name, "scores": scores}}
    values: dict[str, list[Any]] = {}
    with ProgressBar(f"{task.name}, {path.name}", unit="runtime", total=len(runtimes)) as bar:
        for runtime, predictions in runtimes.items():
            values[runtime] = predictions(examples)
            scores = score_predictions(task.kind, examples, values[runtime])
            ours, others = values[RUNTIMES[0]], values[runtime]
            found[runtime] = {"scores": scores}
            if isinstance(ours[0], float):
                found[runtime]["largest_difference"] = max(abs(x - y) for x, y in zip(ours, others, strict=True))
            else:
                found[runtime]["same"] = num_same(ours, others)
            bar.update(1)
    return found


if __name__ == "__main__":
    main()
