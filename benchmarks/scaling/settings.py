"""Settings of the benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import tyro

from benchmarks.training_step import LENGTH
from training.bounds import COUNT, POSITIVE, check_numbers

PartName = Literal["models", "texts", "connections", "process", "processes", "workers", "rows", "corpus", "training"]
Counts = tuple[Annotated[int, COUNT], ...]


@dataclass(frozen=True, kw_only=True)
class ScalingSettings:
    """Measure how cost grows with size."""

    parts: Annotated[tuple[PartName, ...], tyro.conf.Positional] = get_args(PartName)
    """Parts to run, in this order."""
    models: Path = Path("models/embed")
    """Folder of an embedding model, with its versions."""
    out: Path = Path("build/scaling")
    """Path of the report, without `.json`, `.md` and `.png`."""
    seconds: Annotated[float, POSITIVE] = 3.0
    """Seconds of each load."""
    num_models: Counts = (1, 10, 100)
    """Models in one server."""
    num_texts: Counts = (1, 8, 64, 512, 4096, 8192)
    """Texts in a request."""
    num_connections: Counts = (1, 10, 100, 500, 2000)
    """Connections of a server, idle except one."""
    num_workers: Counts = (1, 4, 16, 64)
    """Cores of a scheduler whose batches take time, but no core."""
    num_rows: Counts = (10_000, 100_000, 1_000_000)
    """Rows of a job."""
    corpus_mb: Counts = (10, 100, 1000)
    """Megabytes of text on disk."""
    lengths: tuple[Annotated[int, LENGTH], ...] = (32, 64, 128, 256, 512)
    """Tokens of a sequence in training."""

    def __post_init__(self) -> None:
        check_numbers(self)
