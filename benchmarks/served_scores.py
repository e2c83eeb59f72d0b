"""Claim: a served model gives the scores of its evaluation.

    python -m benchmarks.served_scores --model sst2-fp32 --checkpoint runs/sst2/checkpoint --data dev.tsv

Gets predictions of a running server for a labelled dev set, through the client. Prints their scores, and the number of
examples on which they equal the predictions of the checkpoint in PyTorch.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from bertline import Client
from demo.served import num_same, plain_values, score_predictions, served_predictions
from demo.server import one_line_errors
from training.command import command, parse
from training.data.columns import Columns
from training.data.labelled import read_examples
from training.evaluate import format_scores, load_for_evaluation, predict_with_progress


@dataclass(frozen=True, kw_only=True)
class ServedScoresSettings:
    """Compare the scores of served models with those of their checkpoint."""

    model: tuple[str, ...]
    """Names of served models, all of one task."""
    checkpoint: Path
    """Checkpoint that they were exported from."""
    data: tuple[Path, ...]
    """Labelled dev set: SQuAD JSON, or .tsv, .csv, .jsonl."""
    columns: Columns = field(default_factory=Columns)
    target: str = "127.0.0.1:50051"


def compare(settings: ServedScoresSettings) -> None:
    """Print the scores of the checkpoint and of all models."""
    task, run = load_for_evaluation(settings.checkpoint)
    examples = read_examples(task.name, settings.data, columns=settings.columns, tokenizer=task.tokenizer)
    start = time.monotonic()
    found = predict_with_progress(task, examples, run)
    rows, notes = {"PyTorch": task.score(examples, found)}, [_note("PyTorch", len(examples), start)]
    evaluated = plain_values(task, examples, found)
    with Client(settings.target, timeout=600) as client:
        for model in settings.model:
            start = time.monotonic()
            served = served_predictions(client, task.name, model, examples)
            same = num_same(served, evaluated)
            notes.append(f"{_note(model, len(examples), start)}, {same:,} of {len(examples):,} as evaluated")
            rows[f"served {model}"] = score_predictions(task.name, examples, served)
    print(format_scores(rows), *notes, sep="\n")


def _note(name: str, count: int, start: float) -> str:
    return f"{name}: {count / (time.monotonic() - start):,.0f} examples/s"


@command
@one_line_errors()
def main() -> None:
    """Run the benchmark."""
    compare(parse(ServedScoresSettings, "benchmarks.served_scores", __doc__))


if __name__ == "__main__":
    main()
