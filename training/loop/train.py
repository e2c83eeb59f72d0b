"""The training loop that pretraining and fine-tuning share.

Starting the same command again resumes from the last state (`training.loop.run_directory`). Each step's randomness is a
function of (seed, step), and each batch one of (seed, epoch, index), so a resumed run repeats the uninterrupted one
bit for bit on one process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tasks.metrics import is_loss
from training.loop.distributed import World
from training.loop.interrupt import Interrupt
from training.loop.loss_monitor import LossMonitor
from training.loop.optimizer import create_optimizer, drop_frozen, set_rates
from training.loop.prefetcher import Prefetcher
from training.loop.run_directory import RunDirectory, StateKind
from training.loop.schedule import LearningRateSchedule
from training.loop.throughput_meter import ThroughputMeter
from training.loop.types import Batch, Dtype, Evaluation, LoopSettings, Phase, Progress
from training.model import cpu
from training.model.heads import BertModel

MAX_SHAPES = 64
"""Shapes of batches that torch.compile compiles; fine-tuning on up to 512 tokens has some 32."""


Objective = Callable[[nn.Module, Batch], dict[str, Tensor]]
"""The losses of a batch by name, each summed over its targets."""


def train(
    model: BertModel,
    phases: Sequence[Phase],
    objective: Objective,
    *,
    num_steps: int,
    settings: LoopSettings,
    run: RunDirectory,
    weights: Mapping[str, float] | None = None,
    evaluation: Evaluation | None = None,
    watch: LossMonitor | None = None,
    label: str = "train",
) -> Progress:
    """Train for `num_steps` optimizer steps (or until the time is up), or go on with it.

    Args:
        phases: where global batches come from, in turn.
        objective: losses of a batch, summed over its targets.
        weights: of losses in their sum, where they are not 1.
        evaluation: called on the main process.
        watch: what to look out for in the loss.
        label: of the progress bar.

    Returns:
        How far the run had come with the weights that it leaves; of selected weights on the main process alone.

    Raises:
        DivergedError: when loss or gradient is no longer a number.
        ValueError: when the batch does not divide among the processes.
        KeyboardInterrupt: when a process was asked to stop; there is a state of the last step then.
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
    watch = watch or LossMonitor()
    position = run.load_state(model, optimizer, watch)
    watch.start(num_steps, world.device)
    pace = LearningRateSchedule(num_steps, settings, [phase.end for phase in phases])
    dtype = autocast_dtype(settings.dtype, world.device)
    training = _Training(
        model=model,
        network=network,
        optimizer=optimizer,
        objective=objective,
        weights=weights or {},
        settings=settings,
        run=run,
        evaluation=evaluation,
        watch=watch,
        pace=pace,
        meter=ThroughputMeter(model, position, label=label, pace=pace, dtype=dtype, world=world),
        position=position,
    )
    with closing(training.meter), Prefetcher(phases, settings, world) as feed:
        training.go_on(feed)
    run.close()
    world.barrier()
    if settings.select == "best" and world.is_main:
        position = run.load_best(model)
        print(f"selected: step {position.step:,}, the best on dev", flush=True)
    return position


@dataclass(frozen=True)
class _Step:
    """What came of a step."""

    learning_rate: float
    losses: Mapping[str, Tensor]
    """Means over the global batch, on the device."""
    grad_norm: Tensor
    is_interrupted: bool


@dataclass(frozen=True, kw_only=True)
class _Training:
    """What the steps have in hand; they move the position on."""

    model: BertModel
    network: nn.Module
    """The model as it is called."""
    optimizer: torch.optim.Optimizer
    objective: Objective
    weights: Mapping[str, float]
    settings: LoopSettings
    run: RunDirectory
    evaluation: Evaluation | None
    watch: LossMonitor
    pace: LearningRateSchedule
    meter: ThroughputMeter
    position: Progress

    def go_on(self, feed: Prefetcher) -> None:
        """All steps that are left.

        Raises:
            DivergedError, KeyboardInterrupt: as `train`.
        """
        with Interrupt() as interrupt:
            while not self.pace.is_over(self.position):
                self.pace.enter_phase(self.position)
                step = self.take_step(feed, interrupt)
                self.follow_up(step)
                if step.is_interrupted:
                    break
            if self.run.world.sum(torch.tensor(float(interrupt.is_asked))):  # perhaps since the last step began
                self._stop()

    def _stop(self) -> NoReturn:
        """Leave a state to go on from."""
        self.watch.check_finite()
        self._save("step")
        self.run.close()
        step = self.position.step
        raise KeyboardInterrupt(f"interrupted after step {step:,}; the same command goes on from there")

    def take_step(self, feed: Prefetcher, interrupt: Interrupt) -> _Step:
        """One global batch through the network, and the optimizer after it."""
        position, settings, world = self.position, self.settings, self.run.world
        rate = self.pace.learning_rate(position)
        set_rates(self.optimizer, rate)
        torch.manual_seed((settings.seed * 1_000_003 + position.step) * 4096 + world.rank)
        batches, wait_s = feed.take(position)
        self.network.train()
        own = StepTotals(elapsed_s=self.meter.elapsed_s if world.is_main else 0.0, interrupts=interrupt.is_asked)
        losses, totals = backward(self.network, batches, self.objective, settings, world, own, self.weights)
        drop_frozen(self.optimizer, position.step)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip_norm)
        self.optimizer.found_inf = self.watch.observe(position, losses, norm)  # type: ignore[attr-defined]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        position.step, position.index = position.step + 1, position.index + 1
        position.num_tokens += totals.num_tokens
        position.elapsed_s = totals.elapsed_s
        self.meter.count(batches, totals.num_tokens, wait_s, position)
        return _Step(rate, losses, norm, bool(totals.interrupts))

    def follow_up(self, step: _Step) -> None:
        """What comes after some steps: a line of metrics, scores, a state."""
        settings, is_last = self.settings, self.pace.is_over(self.position)
        is_logged = is_last or self._is_due(settings.log_every)
        is_evaluated = self.evaluation is not None and (is_last or self._is_due(self.evaluation.every))
        is_kept = bool(settings.checkpoint_every) and (is_last or self._is_due(settings.checkpoint_every))
        if is_logged or is_evaluated or is_kept:
            self.watch.check_finite()
        if is_logged and self.run.world.is_main:
            self._log(step)
        if is_evaluated:
            self._evaluate()
        if is_kept:
            self._save("step")

    def _is_due(self, every: int) -> bool:
        """Whether something comes after this step that comes every so many; 0 for never."""
        return bool(every) and self.position.step % every == 0

    def _log(self, step: _Step) -> None:
        position, values = self.position, {name: float(value) for name, value in step.losses.items()}
        total = sum(self.weights.get(name, 1.0) * value for name, value in values.items())
        warning = self.watch.warning(self.pace.step(position), values)
        metrics: dict[str, Any] = {"step": position.step, "epoch": position.epoch, **values, "loss": total}
        metrics |= {"num_tokens": position.num_tokens, **self.meter.report(total)}
        metrics |= {"warning": warning} if warning else {}
        self.run.log(metrics | {"learning_rate": step.learning_rate, "grad_norm": float(step.grad_norm)})

    def _evaluate(self) -> None:
        assert self.evaluation
        start = time.perf_counter()
        scores = self.run.world.on_main(self.evaluation.scores)
        self.run.log({"step": self.position.step, **{f"eval_{name}": value for name, value in scores.items()}})
        if self.settings.checkpoint_every and _is_best(scores, self.position):
            self._save("best")
        self.meter.skip(time.perf_counter() - start)

    def _save(self, kind: StateKind) -> None:
        keep = self.settings.keep_last
        self.run.save_state(self.model, self.optimizer, self.position, self.watch, keep=keep, kind=kind)


def _network(model: nn.Module, settings: LoopSettings, world: World) -> nn.Module:
    """The model as it is called in training: compiled where that pays, and one of several where there are."""
    network = model
    if settings.compile == "on" or (settings.compile == "auto" and world.device.type == "cuda"):
        torch._dynamo.config.recompile_limit = MAX_SHAPES
        network = torch.compile(network, dynamic=False)  # type: ignore[assignment]
    return DistributedDataParallel(network) if world.size > 1 else network


def _is_best(scores: Mapping[str, float], position: Progress) -> bool:
    """Whether the first score is the best so far, which is noted."""
    name, value = next(iter(scores.items()))
    score = -value if is_loss(name) else value
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
    weights: Mapping[str, float] | None = None,
) -> tuple[dict[str, Tensor], StepTotals]:
    """Gradients of the mean losses over the global batch.

    Each loss is a sum over targets divided by their number in the whole global batch, so that the split into processes
    and micro-batches changes nothing. DDP averages gradients over processes, hence the factor.

    Args:
        own: this process's part, but for the tokens.
        weights: of losses in their sum, where they are not 1.

    Returns:
        The mean losses of the global batch by name, on the device, and the totals.
    """
    names = sorted({name for batch in batches for name in batch.counts})
    own_counts = [sum(batch.counts[name] for batch in batches) for name in names]
    own_tokens = sum(batch.num_tokens for batch in batches)
    parts = [*map(float, own_counts), float(own_tokens), own.elapsed_s, float(own.interrupts)]
    *counts, num_tokens, elapsed_s, interrupts = world.sum(torch.tensor(parts, dtype=torch.float64)).tolist()
    totals = torch.zeros(len(names), dtype=torch.float64, device=world.device)
    shares = torch.tensor([(weights or {}).get(name, 1.0) for name in names], device=world.device)
    for number, batch in enumerate(batches):
        is_last = number == len(batches) - 1
        accumulate = (
            network.no_sync() if isinstance(network, DistributedDataParallel) and not is_last else nullcontext()
        )
        with accumulate:
            with autocast(settings.dtype, world.device):
                sums = objective(network, batch)
            losses = torch.stack([sums[name] / max(count, 1) for name, count in zip(names, counts, strict=True)])
            (losses.dot(shares) * world.size).backward()
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
