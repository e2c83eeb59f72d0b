"""Types of the training loop: settings, batches, data, phases, evaluation, progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from tasks.schema import Bounds
from training.command_line.bounds import (
    BELOW_ONE,
    COUNT,
    FRACTION,
    LEARNING_RATE,
    NOT_NEGATIVE,
    POSITIVE,
    check_numbers,
)

Dtype = Literal["auto", "fp32", "bf16"]
Stage = Literal["pretraining", "fine-tuning", "contrastive training", "distillation"]
LAST, BEST = "last", "best"
"""Selections of weights that name no score."""


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """Settings of the training loop, the same for all stages."""

    stage: ClassVar[Stage] = "pretraining"

    global_batch_size: Annotated[int, COUNT] = 32
    """Sequences in a step, over all processes and micro-batches. In multiple choice: questions with their choices."""
    micro_batch_size: Annotated[int, COUNT] = 32
    """Sequences that a process computes at a time. Lower it if memory is short; the result stays the same."""
    learning_rate: Annotated[float, LEARNING_RATE] = 1e-4
    """Peak learning rate."""
    warmup_ratio: Annotated[float, FRACTION] = 0.1
    """Fraction of the steps in which the learning rate rises to its peak; after them it falls linearly to 0."""
    max_minutes: Annotated[float, POSITIVE] | None = None
    """Time budget in minutes, including evaluations. The learning rate falls with the remaining time, and training ends
    when the time is up."""
    weight_decay: Annotated[float, Bounds(least=0, most=1000)] = 0.01
    """AdamW's weight decay, for all weights except biases and layer norms."""
    betas: tuple[Annotated[float, BELOW_ONE], Annotated[float, BELOW_ONE]] = (0.9, 0.999)
    """AdamW's decay rates of the first and second moment."""
    layer_decay: Annotated[float, Bounds(above=0, most=1)] = 1.0
    """Factor of the learning rate from each layer to the one below (ULMFiT: 1 / 2.6); 1 for one rate for all layers."""
    unfreeze_every: Annotated[int, NOT_NEGATIVE] = 0
    """Steps after which the next lower layer starts to train (ULMFiT); 0 to train all layers from the start."""
    clip_norm: Annotated[float, POSITIVE] = 1.0
    """Maximum norm of all gradients together; larger gradients are scaled down to it."""
    dropout: Annotated[float, BELOW_ONE] | None = None
    """Dropout of hidden states and attention; None for the checkpoint's value or, for new weights, the shape's."""
    dtype: Dtype = "auto"
    """Precision of matrix products: bf16 autocast, fp32, or auto (bf16 if the hardware supports it)."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Use torch.compile. auto: on GPUs only."""
    packing: Literal["auto", "off"] = "auto"
    """Join the texts of a micro-batch to one sequence instead of padding them. auto: on CPUs, for batches where that
    saves time. Losses stay the same, except for rounding and random dropout."""
    data_workers: Annotated[int, NOT_NEGATIVE] | None = None
    """Processes that prepare batches; 0 for a thread of the training process. Default: up to 8 in pretraining on a GPU,
    otherwise 0."""
    seed: Annotated[int, Bounds(least=0, most=2**31 - 1)] = 0
    """Random seed of new weights, data order, masks and dropout."""
    log_every: Annotated[int, COUNT] = 10
    """Steps between lines in metrics.jsonl."""
    checkpoint_every: Annotated[int, NOT_NEGATIVE] = 500
    """Steps between resumable states; 0 to save none."""
    keep_last: Annotated[int, COUNT] = 2
    """Resumable states to keep, in addition to the best one on dev."""
    select: str = "last"
    """Weights of the checkpoint: the last ones; `best` for those with the best first score on dev; or the name of the
    score that decides, such as macro_f1. That score is then optimistic."""
    patience: Annotated[int, COUNT] | None = None
    """Stop after this many evaluations in a row without a better score of --select."""

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.patience and self.select == LAST:
            raise ValueError("--patience needs --select best, or a score: it ends a run after its best weights")
        if self.patience and getattr(self, "eval_every", None) == 0:
            raise ValueError("--patience needs evaluations along the way: --eval-every above 0")
        dev = ("dev", "dev_fraction", "dev_corpus")
        if self.select != LAST and not any(getattr(self, name, None) for name in dev):
            raise ValueError(f"--select {self.select} needs held-out data: dev data, or a dev corpus")
        if self.select != LAST and not self.checkpoint_every:
            raise ValueError(f"--select {self.select} needs states: --checkpoint-every above 0")


@dataclass(frozen=True, slots=True)
class Batch:
    """Part of a global batch, ready for the network."""

    inputs: dict[str, Tensor]
    targets: dict[str, Tensor]
    counts: Mapping[str, float]
    """Number of targets of each loss, or the sum of their weights."""
    num_tokens: int
    """Tokens without padding."""

    def to(self, device: torch.device) -> Batch:
        """Return a copy on a device. The copy to a GPU does not wait for its work."""

        def move(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            if device.type == "cuda":  # only pinned memory is copied asynchronously
                tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
            return {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}

        return Batch(move(self.inputs), move(self.targets), self.counts, self.num_tokens)


Losses = Callable[[nn.Module, Batch], dict[str, Tensor]]
"""Function from network and batch to losses by name, each summed over its targets."""


class Data(Protocol):
    """Global batches as a pure function of (epoch, index)."""

    def num_batches(self, epoch: int) -> int:
        """Return the number of global batches in an epoch."""

    def batch(self, epoch: int, index: int, part: slice) -> Batch:
        """Return the sequences `part` of a global batch."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Part of a run with its own data."""

    data: Data
    end: float = 1.0
    """Fraction of the run after which the phase ends."""
    micro_batch_size: int | None = None
    """Replaces the settings' micro-batch size, as longer sequences need more memory."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores during training."""

    scores: Callable[[], dict[str, float]]
    """Function that scores the current weights. The first score selects the best state, unless the settings name one;
    lower is better if its name ends in `loss`."""
    every: int = 0
    """Steps between evaluations; 0 for one at the end."""


@dataclass(frozen=True)
class DataPosition:
    """Position of a global batch in the data."""

    phase: int = 0
    epoch: int = 0
    """Epoch of the phase."""
    index: int = 0
    """Global batch in the epoch."""


@dataclass
class Progress:
    """Progress of a run, stored in its states. Only the training loop changes it."""

    step: int = 0
    phase: int = 0
    epoch: int = 0
    """Epoch of the phase."""
    index: int = 0
    """Global batch in the epoch."""
    num_tokens: int = 0
    """Tokens seen by all processes, without padding."""
    elapsed_s: float = 0.0
    """Seconds of training, evaluations included, without interruptions."""
    best_score: float | None = None
    """Best score so far; higher is better."""
    num_worse: int = 0
    """Evaluations since the best score."""

    @property
    def data_position(self) -> DataPosition:
        """Position of the next global batch."""
        return DataPosition(self.phase, self.epoch, self.index)
