"""Score every model of the line five ways: unpretrained, PyTorch, ONNX fp32 and int8, and served over gRPC.

    python -m mini.scores --data DATA --out build/mini

Dev sets were chosen on; test sets are read here and nowhere else. Writes OUT/scores.json.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertline import Client
from demo.served import plain_values, score_predictions, served_predictions
from demo.server import Server
from export import ort_run
from mini.line import Arguments, Line
from mini.tasks import TASKS, MiniTask
from tasks.batching import predict
from tasks.files import atomic_write
from tasks.json_files import read_json
from tasks.manifest import read_model_directory
from training.baselines import baseline
from training.checkpoint import read_task_card
from training.command import command, parse
from training.data.examples import Examples
from training.data.labelled import columns_there, dev_columns, read_examples
from training.evaluate import load_for_evaluation
from training.grid import REPORT_FILE
from training.progress import Progress

Predict = Callable[[Sequence[Any]], list[Any]]
"""Values of examples, as `demo.served` has them."""


@command
def main() -> None:
    """Command line."""
    arguments = parse(Arguments, "mini.scores", __doc__)
    line = Line(arguments)
    with Server(line.out / "models") as server, Client(server.target, timeout=600) as client:
        found = {task.name: score(line, task, client) for task in TASKS}
    atomic_write(line.out / "scores.json", (json.dumps(found, indent=2) + "\n").encode())


def score(line: Line, task: MiniTask, client: Client) -> dict[str, Any]:
    """The scores of a task: of the grid's seeds, and of the best one's model each way on dev and test."""
    card = read_task_card(line.checkpoint(task))
    assert card
    grid = read_json(line.out / task.name / REPORT_FILE)
    found: dict[str, Any] = {"metric": task.metric, "grid": grid, "ways": {}}
    ways = _ways(line, task, client)
    for split, pattern in (("dev", task.dev), ("test", task.test)):
        if pattern is not None:
            found["ways"][split] = _score_split(line, task, line.path(pattern), card.provenance["recipe"], ways)
    return found


def _ways(line: Line, task: MiniTask, client: Client) -> dict[str, tuple[Any, Predict]]:
    """By name: the task as each way has it, and its predictions."""
    torch_task, torch_run = load_for_evaluation(line.checkpoint(task))
    ways: dict[str, tuple[Any, Predict]] = {"PyTorch": (torch_task, _local(torch_task, torch_run))}
    for precision in ("fp32", "int8"):
        directory = read_model_directory(line.model(task, precision))
        run = ort_run(directory.model_path, execution=directory.manifest.execution)
        loaded = directory.load_task()
        ways[f"ONNX {precision}"] = loaded, _local(loaded, run)
    ways["served int8"] = (
        torch_task,
        lambda examples: served_predictions(client, task.kind, task.model, examples),
    )
    return ways


def _local(task: Any, run: Any) -> Predict:
    def predictions(examples: Sequence[Any]) -> list[Any]:
        found = predict(task, examples, run, max_batch_tokens=512, chunk_size=256)
        return [value for pair in zip(examples, found, strict=True) for value in plain_values(task, *pair)]

    return predictions


def _score_split(
    line: Line, task: MiniTask, path: Path, recipe: Mapping[str, Any], ways: Mapping[str, tuple[Any, Predict]]
) -> dict[str, Any]:
    """Scores, seconds, and on how many examples each way says what PyTorch says."""
    reference, _ = ways["PyTorch"]

    def read(paths: Sequence[Path]) -> Examples:
        columns = columns_there(paths, dev_columns(recipe))
        return read_examples(task.kind, paths, columns=columns, tokenizer=reference.tokenizer)

    examples, known = read([path]), read([line.path(name) for name in task.train])
    name, scores = baseline(task.kind, known, examples, reference.tokenizer)
    found: dict[str, Any] = {"num_examples": len(examples), "baseline": {"name": name, "scores": scores}}
    values: dict[str, list[Any]] = {}
    with Progress(f"{task.name}, {path.name}", unit="way", total=len(ways)) as bar:
        for way, (_, predictions) in ways.items():
            start = time.monotonic()
            values[way] = predictions(examples)
            seconds = time.monotonic() - start
            same = sum(one == other for one, other in zip(values["PyTorch"], values[way], strict=True))
            scores = score_predictions(task.kind, examples, values[way])
            found[way] = {"scores": scores, "seconds": round(seconds, 2), "same": same}
            bar.update(1)
    return found


if __name__ == "__main__":
    main()
