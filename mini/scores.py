"""Score the model of a task four ways: PyTorch, ONNX fp32 and int8, and served over gRPC.

    python -m mini.scores sst-2 --data DATA --out build/mini

Dev sets were chosen on; test sets are read here and nowhere else. Writes OUT/sst-2/scores.json, in which there is also
what the grid has found, and what it all took.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from bertline import Client
from demo.served import local_predictions, num_same, score_predictions, served_predictions
from demo.server import Server, one_line_errors
from export import ort_run
from mini.line import EMBED, STS, STS_COLUMNS, Arguments, Line, check_names, commands_of, served_as, task_names
from mini.tasks import CLOZE, TASKS, MiniTask
from tasks.files import atomic_write
from tasks.json_files import read_json
from tasks.model_directory import read_model_directory
from training.checkpoint import load_tokenizer
from training.command import command, parse
from training.data.columns import dev_columns, existing_columns
from training.data.examples import Examples
from training.data.labelled import read_examples, read_similarities
from training.evaluate import load_for_evaluation
from training.grid import REPORT_FILE
from training.loop.run_directory import METRICS_FILE, read_metrics
from training.objectives import best_baseline
from training.progress_bar import ProgressBar
from training.similarity import vector_scores
from training.task_card import TaskCard, read_task_card
from training.weights import checkpoint_digest

Predict = Callable[[Sequence[Any]], list[Any]]
"""Values of examples, as `demo.served` has them."""
BEFORE = ("word overlap", "mean of word embeddings", "before, cls", "before, mean")
"""What vectors are held against, as contrastive training names it."""
WAYS = ("PyTorch", "ONNX fp32", "ONNX int8", "served int8")
"""To compute one model."""


@dataclass(frozen=True, kw_only=True)
class ScoresArguments(Arguments):
    """Score the model of a task."""

    name: Annotated[str, tyro.conf.Positional]
    """Of the task, such as sst-2 or embed."""
    only: tyro.conf.Suppress[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names([self.name], task_names())


@command
@one_line_errors()
def main() -> None:
    """Command line."""
    arguments = parse(ScoresArguments, "mini.scores", __doc__)
    line, name = Line(arguments), arguments.name
    task = next((task for task in TASKS if task.name == name), None)
    data = line.digests(name)
    _check_origins(line, name, data)
    with Server(line.models(name, "int8")) as server, Client(server.target, timeout=600) as client:
        found = score(line, task, client) if task else score_vectors(line, client)
    found["pretrained"] = checkpoint_digest(line.pretrained)
    found["commands"] = commands_of(name)
    found["data"] = data
    found["recipe"] = _card(line, name).provenance["recipe"]
    found["machine"] = _trained_on(line, name)
    found["cost"] = cost(sorted(line.out.glob(f"{name}/**/{METRICS_FILE}")))
    if CLOZE in line.trained(name):
        found["cloze"] = of_cloze(line)
    atomic_write(line.scores(name), (json.dumps(found, indent=2) + "\n").encode())


def score(line: Line, task: MiniTask, client: Client) -> dict[str, Any]:
    """The scores of a task: of the grid's seeds, and of the best one's model each way on dev and test."""
    grid = read_json(line.out / task.name / REPORT_FILE)
    found: dict[str, Any] = {"metric": task.metric, "grid": grid, "ways": {}}
    ways = _ways(line, task.name, task.kind, client)
    for split, pattern in (("dev", task.dev), ("test", task.test)):
        if pattern is not None:
            found["ways"][split] = _score_split(line, task, line.path(pattern), ways)
    return found


def score_vectors(line: Line, client: Client) -> dict[str, Any]:
    """How well cosines agree with the scores of STS-B dev: of the vectors, and of what was there before tuning."""
    pairs = read_similarities([line.path(STS)], columns=STS_COLUMNS, tokenizer=load_tokenizer(line.pretrained))
    before = {name: _card(line, EMBED).scores[name] for name in BEFORE}
    ways = _ways(line, EMBED, "embedding", client)
    after = {way: vector_scores(pairs, predictions) for way, predictions in ways.items()}
    return {"num_examples": len(pairs)} | before | after


def _agreement(ours: Sequence[Any], others: Sequence[Any]) -> dict[str, Any]:
    if isinstance(ours[0], float):
        return {"largest_difference": max(abs(one - other) for one, other in zip(ours, others, strict=True))}
    return {"same": num_same(ours, others)}


def of_cloze(line: Line) -> dict[str, Any]:
    """What fine-tuning on questions that text asks of itself has cost, and its score without a real question."""
    spent = cost([line.out / CLOZE / METRICS_FILE])
    return {"scores": _card(line, CLOZE).scores["dev"], "machine": _trained_on(line, CLOZE), "cost": spent}


def cost(files: Sequence[Path]) -> dict[str, Any]:
    """Runs, hours and tokens of training that metrics tell of."""
    ends = [end for file in files if (end := last_progress(file.parent))]
    return {
        "num_runs": len(ends),
        "hours": round(math.fsum(end["elapsed_s"] for end in ends) / 3600, 4),
        "num_tokens": sum(end["num_tokens"] for end in ends),
    }


def last_progress(run: Path) -> dict[str, Any] | None:
    """The last line of a run's metrics that says how far it came; None where none does."""
    return next((line for line in reversed(read_metrics(run)) if {"elapsed_s", "num_tokens"} <= line.keys()), None)


def _card(line: Line, name: str) -> TaskCard:
    card = read_task_card(line.checkpoint(name))
    if card is None:
        raise ValueError(f"`{line.checkpoint(name)}` is none of ours; remove `{line.out / name}` to make it anew")
    return card


def _trained_on(line: Line, name: str) -> dict[str, Any]:
    """The machine of a task's training; empty where a checkpoint is from before that was recorded."""
    return dict(_card(line, name).provenance.get("machine", {}))


def _check_origins(line: Line, name: str, data: Mapping[str, str]) -> None:
    """What is scored together belongs together: nothing of it was made anew alone.

    Args:
        data: the digests of now.

    Raises:
        ValueError: when a model does not come from the checkpoint, or that not from the pretrained one, or from other
            data than those of now.
    """
    made = checkpoint_digest(line.checkpoint(name))
    for precision in ("fp32", "int8"):
        manifest = read_model_directory(line.model(name, precision)).manifest
        if manifest.provenance["checkpoint"]["sha256"] != made:
            raise ValueError(f"`{line.model(name, precision)}` is no export of `{line.checkpoint(name)}`; remove it")
    for each in line.trained(name):
        made_from = _card(line, each).provenance
        line.check_origin(each, made_from["checkpoint"]["sha256"], line.start(each))
        if other := [file for file, digest in made_from["data"].items() if digest not in data.values()]:
            raise ValueError(f"`{line.out / each}` was made from another `{other[0]}`; remove it to make it anew")


def _ways(line: Line, name: str, kind: str, client: Client) -> dict[str, Predict]:
    """What each way predicts.

    Args:
        name: of the task.
        kind: what it is called in the client.
    """
    runs = [load_for_evaluation(line.checkpoint(name))]
    for precision in ("fp32", "int8"):
        directory = read_model_directory(line.model(name, precision))
        runs.append((directory.load_task(), ort_run(directory.model_path, execution=directory.manifest.execution)))
    local = [partial(local_predictions, task, run, chunk_size=256) for task, run in runs]
    return dict(zip(WAYS, [*local, partial(served_predictions, client, kind, served_as(name))], strict=True))


def _score_split(line: Line, task: MiniTask, path: Path, ways: Mapping[str, Predict]) -> dict[str, Any]:
    """Scores, and on how many examples each way says what PyTorch says; of numbers the largest difference."""
    tokenizer, recipe = load_tokenizer(line.pretrained), _card(line, task.name).provenance["recipe"]

    def read(paths: Sequence[Path]) -> Examples:
        columns = existing_columns(paths, dev_columns(recipe))
        return read_examples(task.kind, paths, columns=columns, tokenizer=tokenizer)

    examples, known = read([path]), read([line.path(name) for name in task.train])
    name, scores = best_baseline(task.kind, known, examples, tokenizer)
    found: dict[str, Any] = {"num_examples": len(examples), "baseline": {"name": name, "scores": scores}}
    values: dict[str, list[Any]] = {}
    with ProgressBar(f"{task.name}, {path.name}", unit="way", total=len(ways)) as bar:
        for way, predictions in ways.items():
            values[way] = predictions(examples)
            scores = score_predictions(task.kind, examples, values[way])
            found[way] = {"scores": scores, **_agreement(values[WAYS[0]], values[way])}
            bar.update(1)
    return found


if __name__ == "__main__":
    main()
