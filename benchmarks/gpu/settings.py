"""Settings of the benchmark, and what a run measures with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import torch
import tyro

from benchmarks.samples import TINY, TINY_VOCAB_SIZE
from training.command_line.bounds import COUNT, POSITIVE, check_numbers

PartName = Literal["memory", "server", "pretraining", "resume"]
SHAPES = {"MiniLM (L6 H384)": (6, 384, 12), "BERT-base (L12 H768)": (12, 768, 12)}
BATCH_TOKENS = 32_768
"""Tokens of a batch in training."""
DRY_SHAPES = {"tiny (L2 H32)": TINY}


@dataclass(frozen=True, kw_only=True)
class GpuSettings:
    """Measure memory, server and pretraining on a GPU."""

    parts: Annotated[tuple[PartName, ...], tyro.conf.Positional] = get_args(PartName)
    """Parts to run, in this order."""
    out: Path = Path("build/gpu")
    """Path of the report, without `.json` and `.md`."""
    device: Literal["cuda", "cpu"] = "cuda"
    """cpu: a dry run with tiny networks, whose figures mean nothing."""
    seconds: Annotated[float, POSITIVE] = 4.0
    """Seconds of each load of the server; of random lengths, five times as long."""
    lengths: tuple[Literal[128, 512], ...] = (128, 512)
    """Lengths of sequences in pretraining."""
    num_steps: Annotated[int, COUNT] = 100
    """Steps of each pretraining."""

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("PyTorch finds no GPU; give --device cpu for a dry run")

    @property
    def is_dry(self) -> bool:
        """True without a GPU."""
        return self.device == "cpu"

    @property
    def batches(self) -> dict[int, int]:
        """Length of the sequences to train on -> sequences in a batch."""
        return {32: 4} if self.is_dry else {length: BATCH_TOKENS // length for length in self.lengths}

    @property
    def shapes(self) -> dict[str, tuple[int, int, int]]:
        """Layers, hidden size and heads of the networks, by name; the largest is the last."""
        return DRY_SHAPES if self.is_dry else SHAPES

    @property
    def largest(self) -> tuple[str, tuple[int, int, int]]:
        """Name and shape of the largest network."""
        return list(self.shapes.items())[-1]

    @property
    def smallest(self) -> tuple[tuple[int, int, int], int]:
        """Shape of the smallest network, and its vocabulary size."""
        return next(iter(self.shapes.values())), self.vocab_size

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary, BERT's on a GPU."""
        return TINY_VOCAB_SIZE if self.is_dry else 30_522

    @property
    def torch_device(self) -> torch.device:
        """Device in PyTorch."""
        return torch.device(self.device)
