"""Claim: the int8 graph of a student is several times as fast as that of its teacher.

    python -m export TEACHER models/teacher/1 --precision int8 --no-tune --train TRAIN --dev DEV
    python -m benchmarks.students models/embed/1 models/teacher/1 --texts sentences.txt

Model directories of text vectors in this process, without a server, with the settings of their manifests. They run in
turns; the table shows medians.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import tyro

from benchmarks.engine import Engine
from tasks.embedding import Embedding
from tasks.model_directory import read_model_directory
from training.bounds import COUNT, POSITIVE, check_numbers
from training.command import command, parse
from training.text.documents import read_lines


@dataclass(frozen=True, kw_only=True)
class StudentSettings:
    """Compare the speeds of models of text vectors."""

    models: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Model directories: the student, then what it is compared with."""
    texts: Path
    """Text file; its first lines are embedded."""
    num_texts: Annotated[int, COUNT] = 600
    """Number of texts."""
    rounds: Annotated[int, COUNT] = 5
    """Measurements of each model."""
    seconds: Annotated[float, POSITIVE] = 5
    """Seconds of a measurement."""

    def __post_init__(self) -> None:
        check_numbers(self)
        if len({path.resolve() for path in self.models}) < max(2, len(self.models)):
            raise ValueError("give at least two different model directories")


@command
def main() -> None:
    """Command line."""
    settings = parse(StudentSettings, "benchmarks.students", __doc__)
    texts = [line for line in read_lines(settings.texts) if line.strip()][: settings.num_texts]
    if not texts:
        raise ValueError(f"`{settings.texts}` has no text")
    for path in settings.models:
        if (task := read_model_directory(path).manifest.task) != Embedding.name:
            raise ValueError(f"`{path}` is a model of task `{task}`, not `{Embedding.name}`")
    engines = {path: Engine(path) for path in settings.models}
    speeds: dict[Path, list[float]] = {path: [] for path in engines}
    for _ in range(settings.rounds):
        for path, engine in engines.items():
            speeds[path].append(engine.examples_per_s(texts, settings.seconds, chunk=64))
    first = median(speeds[settings.models[0]])
    for path, values in speeds.items():
        print(
            f"{path}: {median(values):,.0f} texts/s; {settings.models[0]} is {first / median(values):.2f} times as fast"
        )


if __name__ == "__main__":
    main()
