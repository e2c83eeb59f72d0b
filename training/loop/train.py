"""The training loop that pretraining and fine-tuning share.

Starting the same command again goes on from the last state (see `training.loop.run`). Each step's randomness is a
function of (seed, step), and each batch one of (seed, epoch, index), so a resumed run repeats the uninterrupted one
bit for bit on one process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from training.loop.distributed import World
from training.loop.feed import Feed
from training.loop.interrupt import Interrupt
from training.loop.meter import Meter
from training.loop.optimizer import create_optimizer, drop_frozen, set_rates
from training.loop.pace import Pace
from training.loop.run import Position, Run
from training.loop.watch import Watch
from training.model import cpu
from training.model.bert import BertModel

Dtype = Literal["auto", "fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """How to train, whatever is trained."""

    global_batch_size: int = 32
    """Sequences in a step, over all processes and micro-batches."""
    micro_batch_size: int = 32
    """Sequences that go through the network at one time in one process; more are accumulated."""
    learning_rate: float = 1e-4
    """Peak of the learning rate."""
    warmup_ratio: float = 0.1
    """Share of the steps in which the learning rate rises."""
    max_minutes: float | None = None
    """Time budget: the learning rate falls with the time that is left, and training ends when it is up."""
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates of the moments."""
    layer_decay: float = 1.0
    """Learning rate of a layer over that of the layer above it (ULMFiT uses 1 / 2.6); 1 for the same everywhere."""
    unfreeze_every: int = 0
    """Steps after which the next lower layer joins training, from the head down (ULMFiT); 0 for all from the start."""
    clip_norm: float = 1.0
    """Gradients are scaled down to this global norm."""
    dropout: float | None = None
    """Dropout of hidden states and attention; None for the shape's or checkpoint's own."""
    dtype: Dtype = "auto"
    """Arithmetic of matrix products: bf16 autocast, fp32, or auto (bf16 where the hardware has it)."""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile; auto is on for GPUs, where it pays."""
    seed: int = 0
    log_every: int = 10
    """Steps between lines in metrics.jsonl."""
    checkpoint_every: int = 500
    """Steps between resumable states; 0 for none."""
    keep_last: int = 2
    """Resumable states to keep, beside the best one on dev."""
    select: Literal["last", "best"] = "last"
    """Weights of the checkpoint: the last, or those that scored best on dev on the way (which flatters the score)."""

    def __post_init__(self) -> None:
        for name in ("global_batch_size", "micro_batch_size", "log_every", "keep_last"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1: `{getattr(self, name)}`")
        for name in ("unfreeze_every", "checkpoint_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative: `{getattr(self, name)}`")
        if not 0 <= self.warmup_ratio <= 1 or not 0 <= self.seed < 2**31:
            raise ValueError(
                f"warmup_ratio `{self.warmup_ratio}` lies between 0 and 1, seed `{self.seed}` between 0 and 2^31 - 1"
            )
        for name in ("learning_rate", "clip_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a number above 0: `{getattr(self, name)}`")
        if not 0 <= self.weight_decay < math.inf or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(
                f"weight_decay `{self.weight_decay}` must not be negative, betas `{self.betas}` lie from 0 to below 1"
            )
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay lies above 0 and up to 1: `{self.layer_decay}`")
        if self.max_minutes is not None and not 0 < self.max_minutes < math.inf:
            raise ValueError(f"max_minutes must be above 0: `{self.max_minutes}`")
        if self.select == "best" and not (getattr(self, "dev", None) or getattr(self, "dev_corpus", None)):
            raise ValueError("--select best needs held-out data: --dev, or --dev-corpus")
        if self.select == "best" and not self.checkpoint_every:
            raise ValueError("--select best needs states: --checkpoint-every above 0")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1: `{self.dropout}`")


@dataclass(frozen=True, slots=True)
class Batch:
    """Part of a global batch on its way through the network."""

    inputs: dict[str, Tensor]
    targets: dict[str, Tensor]
    counts: dict[str, int]
    """Number of targets of each loss, by which its sum over the global batch is divided."""
    num_tokens: int
    """Tokens without padding."""

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        move = lambda items: {k: v.to(device, non_blocking=True) for k, v in items.items()}  # noqa: E731
        return Batch(move(self.inputs), move(self.targets), self.counts, self.num_tokens)


class Data(Protocol):
    """Global batches as a pure function of (epoch, index)."""

    def num_batches(self, epoch: int) -> int:
        """Global batches in an epoch."""

    def batch(self, epoch: int, index: int, part: slice) -> Batch:
        """The sequences `part` of a global batch."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Part of a run with data of its own."""

    data: Data
    end: float = 1.0
    """Share of the run after which it is over."""
    micro_batch_size: int | None = None
    """Instead of the settings' (longer sequences need more memory)."""


Objective = Callable[[nn.Module, Batch], dict[str, Tensor]]
"""The losses of a batch by name, each summed over its targets."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores on the way."""

    scores: Callable[[], dict[str, float]]
    """Of the model as it is; the first decides which state is the best (lower is better if its name ends in `loss`)."""
    every: int = 0
    """Steps in between; 0 for at the end only."""


def train(
    model: BertModel,
    phases: Sequence[Phase],
    objective: Objective,
    *,
    num_steps: int,
    settings: LoopSettings,
    run: Run,
    evaluation: Evaluation | None = None,
    watch: Watch | None = None,
    label: str = "train",
) -> Position:
    """Train for `num_steps` optimizer steps (or until the time is up), or go on with it.

    Args:
        phases: where global batches come from, in turn.
        objective: losses of a batch, summed over its targets.
        evaluation: called on the main process.
        watch: what to look out for in the loss.
        label: of the progress bar.

    Raises:
        DivergedError: when loss or gradient is no longer a number.
        ValueError: when the batch does not divide among the processes.
    """
    world = run.world
    if settings.global_batch_size % world.size:
        raise ValueError(
            f"global_batch_size `{settings.global_batch_size}` is not a multiple of {world.size} processes"
        )
    world.barrier()  # the main process may come from an evaluation, and what follows waits for nobody that long
    cpu.keep_memory()
    model.to(world.device)
    network = _network(model, settings, world)
    optimizer = create_optimizer(
        model,
        weight_decay=settings.weight_decay,
        betas=settings.betas,
        layer_decay=settings.layer_decay,
        unfreeze_every=settings.unfreeze_every,
    )
    watch = watch or Watch()
    position = run.load_state(model, optimizer, watch)
    watch.start(num_steps, world.device)
    pace = Pace(num_steps, settings, [phase.end for phase in phases])
    dtype = autocast_dtype(settings.dtype, world.device)
    meter = Meter(model.config, position, label=label, pace=pace, dtype=dtype, world=world)
    with closing(meter), Feed(phases, settings, world) as feed, Interrupt() as interrupt:
        while not pace.is_over(position):
            pace.enter_phase(position)
            rate = pace.learning_rate(position)
            set_rates(optimizer, rate)
            torch.manual_seed((settings.seed * 1_000_003 + position.step) * 4096 + world.rank)
            batches, wait_s = feed.take(position)
            network.train()
            own = StepTotals(elapsed_s=meter.elapsed_s if world.is_main else 0.0, interrupts=interrupt.is_asked)
            losses, totals = backward(network, batches, objective, settings, world, own)
            drop_frozen(optimizer, position.step)
            norm = nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
            optimizer.found_inf = watch.observe(position, losses, norm)  # type: ignore[attr-defined]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            position.step, position.index = position.step + 1, position.index + 1
            position.num_tokens += totals.num_tokens
            position.elapsed_s = totals.elapsed_s
            is_last = pace.is_over(position)
            meter.count(batches, totals.num_tokens, wait_s, position)
            is_logged = position.step % settings.log_every == 0 or is_last
            is_evaluated = is_last or _is_due(position, evaluation.every if evaluation else 0)
            is_saved = (
                totals.interrupts
                or (is_last and settings.checkpoint_every)
                or _is_due(position, settings.checkpoint_every)
            )
            if is_logged or is_evaluated or is_saved:
                watch.check_finite()
            if is_logged and world.is_main:
                run.log(_metrics(position, losses, watch, meter) | {"learning_rate": rate, "grad_norm": float(norm)})
            if evaluation and is_evaluated:
                start = time.perf_counter()
                scores = world.on_main(evaluation.scores)
                run.log({"step": position.step, **{f"eval_{name}": value for name, value in scores.items()}})
                if settings.checkpoint_every and _is_best(scores, position):
                    run.save_state(model, optimizer, position, watch, keep=1, kind="best")
                meter.skip(time.perf_counter() - start)
            if is_saved:
                run.save_state(model, optimizer, position, watch, keep=settings.keep_last)
            if totals.interrupts:
                run.close()
                raise KeyboardInterrupt(
                    f"interrupted after step {position.step:,}; the same command goes on from there"
                )
    run.close()
    world.barrier()
    if settings.select == "best" and world.is_main:
        print(f"selected: step {run.load_best(model):,}, the best on dev", flush=True)
    return position


def _is_due(position: Position, every: int) -> bool:
    """Whether something comes after this step that comes every so many; 0 for never."""
    return bool(every) and position.step % every == 0


def _metrics(position: Position, losses: Mapping[str, Tensor], watch: Watch, meter: Meter) -> dict[str, Any]:
    """What is logged of a step beside its learning rate and gradient."""
    values = {name: float(value) for name, value in losses.items()}
    total, warning = sum(values.values()), watch.warning(position.step, values)
    metrics = {"step": position.step, "epoch": position.epoch, **values, "loss": total}
    metrics |= {"num_tokens": position.num_tokens, **meter.report(total)}
    return metrics | ({"warning": warning} if warning else {})


def _network(model: nn.Module, settings: LoopSettings, world: World) -> nn.Module:
    """The model as it is called in training: compiled where that pays, and one of several where there are."""
    network = model
    if settings.compile == "on" or (settings.compile == "auto" and world.device.type == "cuda"):
        network = torch.compile(network, dynamic=False)  # type: ignore[assignment]
    return DistributedDataParallel(network) if world.size > 1 else network


def _is_best(scores: Mapping[str, float], position: Position) -> bool:
    """Whether the first score is the best so far, which is noted."""
    name, value = next(iter(scores.items()))
    score = -value if name.endswith("loss") else value
    if not math.isfinite(score) or (position.best_score is not None and score <= position.best_score):
        return False
    position.best_score = score
    return True


@dataclass(frozen=True)
class StepTotals:
    """What a step adds up over all processes beside its losses."""

    num_tokens: int = 0
    elapsed_s: float = 0.0
    """The main process's clock; the others add nothing."""
    interrupts: float = 0
    """Processes that were asked to stop: all stop after the same step."""


def backward(
    network: nn.Module,
    batches: Sequence[Batch],
    objective: Objective,
    settings: LoopSettings,
    world: World,
    own: StepTotals,
) -> tuple[dict[str, Tensor], StepTotals]:
    """Gradients of the mean losses over the global batch.

    Each loss is a sum over targets divided by their number in the whole global batch, so that the split into processes
    and micro-batches changes nothing. DDP averages gradients over processes, hence the factor.

    Args:
        own: this process's part, but for the tokens.

    Returns:
        The mean losses of the global batch by name, on the device, and the totals.
    """
    names = sorted({name for batch in batches for name in batch.counts})
    own_counts = [sum(batch.counts[name] for batch in batches) for name in names]
    own_tokens = sum(batch.num_tokens for batch in batches)
    parts = [*map(float, own_counts), float(own_tokens), own.elapsed_s, float(own.interrupts)]
    *counts, num_tokens, elapsed_s, interrupts = world.sum(torch.tensor(parts, dtype=torch.float64)).tolist()
    totals = torch.zeros(len(names), dtype=torch.float64, device=world.device)
    for number, batch in enumerate(batches):
        is_last = number == len(batches) - 1
        accumulate = (
            network.no_sync() if isinstance(network, DistributedDataParallel) and not is_last else nullcontext()
        )
        with accumulate:
            with autocast(settings.dtype, world.device):
                sums = objective(network, batch)
            losses = torch.stack([sums[name] / max(count, 1) for name, count in zip(names, counts, strict=True)])
            (losses.sum() * world.size).backward()
        totals += losses.detach().double()
    means = dict(zip(names, world.sum(totals).unbind(), strict=True))
    return means, StepTotals(int(num_tokens), elapsed_s, interrupts)


def autocast(dtype: Dtype, device: torch.device) -> torch.autocast:
    """Autocast of the dtype asked for; `auto` is bf16 where matrix products in bf16 are in the hardware."""
    chosen = autocast_dtype(dtype, device)
    return torch.autocast(device.type, torch.bfloat16, enabled=chosen == torch.bfloat16)


def autocast_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """The dtype of matrix products."""
    return torch.bfloat16 if dtype == "bf16" or (dtype == "auto" and has_bf16(device)) else torch.float32


def has_bf16(device: torch.device) -> bool:
    """Whether the hardware multiplies bf16 matrices."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(torch.cpu.get_capabilities().get("avx512_bf16"))
