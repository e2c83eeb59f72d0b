"""Recorded answers: Parquet files with the probabilities of a served model, as the client's batch jobs write them.

Columns are those of `bertline classify`, `regress`, `answer` and `choose`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from tasks import TASKS
from tasks.base import TaskSettings
from tasks.classification import MULTI_LABEL, SINGLE_LABEL, ClassificationSettings
from tasks.files import sha256
from tasks.spans import SpanSettings
from training.data.columns import Columns
from training.data.examples import Examples
from training.data.tables import Row
from training.distillation.outputs import Compute
from training.distillation.parquet_files import open_parquet
from training.loop.distributed import World
from training.objectives.distillation import Rows

_KEYS = {
    "classification": ("text", "text_pair"),
    "regression": ("text", "text_pair"),
    "spans": ("question", "context"),
    "multiple-choice": ("context", "question", "choices"),
}
"""Columns of what was asked, named as the fields of examples, by task."""
_FOUND = {"classification": "labels", "regression": "value", "spans": "spans", "multiple-choice": "scores"}
"""Column of what was answered, by task."""
_SMALLEST = 1e-9
"""Probability of a label that the recorded scores round to 0."""


@dataclass(frozen=True)
class RecordedAnswers:
    """Answers of a served model to examples of a task, in Parquet files."""

    paths: tuple[Path, ...]
    sha256: str
    settings: TaskSettings
    """Settings of the served model, as far as its answers show them."""
    rows: Mapping[Any, Rows]
    """Outputs by what was asked."""

    @property
    def name(self) -> str:
        """Names of the files."""
        return ", ".join(path.name for path in self.paths)

    @property
    def digest(self) -> str:
        """Digest of everything that its outputs depend on."""
        return self.sha256

    def record(self) -> dict[str, str]:
        """Return name and digest, for the task card of the student."""
        return {"name": self.name, "sha256": self.sha256, "licence": ""}

    def made_from(self) -> dict[str, str]:
        """Return the digest of the files."""
        return {"recorded": self.sha256}

    def task_outputs(self, task: str, examples: Examples, world: World) -> Compute:
        """Return a function from a slice of examples to the outputs for each.

        Raises:
            ValueError: naming the first example that was not answered.
        """
        keys = [_key(task, _fields(example)) for example in examples]
        if missing := [number for number, key in enumerate(keys) if key not in self.rows]:
            raise ValueError(
                f"{len(missing):,} of {len(keys):,} training examples have no answer in `{self.name}`, the first: "
                f"{examples.locations[missing[0]]}; record answers to the same examples, or leave out --train"
            )
        return lambda part: [self.rows[key] for key in keys[part]]


def read_recorded_answers(task: str, paths: Sequence[Path], columns: Columns) -> RecordedAnswers:
    """Read answers of batch jobs: of `bertline classify`, `regress`, `answer` or `choose`.

    Raises:
        ValueError: naming the file, and the column or row that is wrong; or if the answers do not hold what a student
            needs.
    """
    if task not in _FOUND:
        raise ValueError(f"--recorded holds no probabilities of all tags, which `{task}` needs; give --teacher")
    records = [record for path in paths for record in _records(task, path, columns)]
    if not records:
        raise ValueError(f"no rows in {', '.join(f'`{path}`' for path in paths)}")
    settings = _settings(task, records)
    rows: dict[Any, Rows] = {}
    places: dict[Any, str] = {}
    for location, row in records:
        key, found = _key(task, row), _rows(task, location, row, settings)
        if not np.isfinite(found).all():
            raise ValueError(f"{location}: the answer is NaN or infinite; leave out the row")
        if key in rows and not (rows[key].shape == found.shape and np.allclose(rows[key], found, atol=1e-2)):
            raise ValueError(
                f"{location}: the same input has another answer in {places[key]}; give answers of one model"
            )
        rows.setdefault(key, found)
        places.setdefault(key, location)
    return RecordedAnswers(tuple(paths), "+".join(map(sha256, paths)), settings, rows)


def _fields(example: Any) -> dict[str, Any]:
    """Return the fields of an example by name."""
    return {item.name: getattr(example, item.name) for item in fields(example)}


def _key(task: str, row: Mapping[str, Any]) -> Any:
    """Return what was asked, in a form to compare."""
    values = (row.get(name) or None for name in _KEYS[task])
    return tuple(tuple(value) if isinstance(value, list) else value for value in values)


def _records(task: str, path: Path, columns: Columns) -> Iterator[Row]:
    """Yield location and columns of each row, the latter named as the fields of examples."""
    names, found = open_parquet(path).schema_arrow.names, _FOUND[task]
    known = {name: getattr(columns, name) for name in _KEYS[task] if getattr(columns, name) in names}
    required = [known.get(_KEYS[task][0]) if task != "multiple-choice" else known.get("choices"), found]
    if None in required or found not in names:
        raise ValueError(
            f"`{path}` needs columns `{'`, `'.join(_KEYS[task])}` and `{found}` (columns: {', '.join(names)}); batch "
            "jobs of the client write them"
        )
    wanted = [*known.values(), *(name for name in (found, "selected", "no_answer_score") if name in names)]
    for number, row in enumerate(open_parquet(path).read(columns=wanted).to_pylist(), start=1):
        location = f"`{path}`, row {number}"
        if row[found] is None:
            raise ValueError(f"{location}: `{found}` is empty; its text was rejected: leave out the row")
        yield location, {**row, **{name: row[column] for name, column in known.items()}}


def _settings(task: str, records: Sequence[Row]) -> TaskSettings:
    """Return the settings that the answers show."""
    if task == "classification":
        labels = tuple(sorted({item["label"] for _, row in records for item in row["labels"]}))
        several = any("selected" in row for _, row in records)
        return ClassificationSettings(labels=labels, problem_type=MULTI_LABEL if several else SINGLE_LABEL)
    if task == "spans":
        return SpanSettings(unanswerable=any(row.get("no_answer_score") for _, row in records))
    return TASKS[task].settings_type()


def _rows(task: str, location: str, row: Mapping[str, Any], settings: TaskSettings) -> Rows:
    """Return an answer as `training.objectives.distillation` has the outputs of a network: logits."""
    if task == "regression":
        return np.array([[row["value"]]], np.float32)
    if task == "multiple-choice":
        return _logits(np.array(row["scores"], np.float64))[:, None]
    if task == "spans":
        spans = [(-1, -1, row.get("no_answer_score") or 0.0)]
        spans += [(span["start"], span["end"] - 1, span["score"]) for span in row["spans"]]
        first, last, scores = np.array(spans, np.float64).T
        return np.column_stack([first, last, _logits(scores), _logits(scores)]).astype(np.float32)
    assert isinstance(settings, ClassificationSettings)
    scores_of = {item["label"]: item["score"] for item in row["labels"]}
    if missing := [label for label in settings.labels if label not in scores_of]:
        raise ValueError(f"{location}: no score of label `{missing[0]}`; record all labels (no --top-k)")
    scores = np.array([scores_of[label] for label in settings.labels])
    return (
        np.log(scores.clip(_SMALLEST)) - np.log1p(-scores.clip(0, 1 - _SMALLEST))
        if settings.is_multi_label
        else _logits(scores)
    )[None].astype(np.float32)


def _logits(scores: np.ndarray) -> np.ndarray:
    """Return logits whose softmax gives these probabilities."""
    found: np.ndarray = np.log(scores.clip(_SMALLEST)).astype(np.float32)
    return found
