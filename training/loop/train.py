"""Training loop of pretraining, fine-tuning and contrastive training.

The same command resumes from the last state (`training.loop.run_directory`). The randomness of a step is a function of
(seed, step), and a batch is a function of (seed, epoch, index), so a resumed run on one process repeats the
uninterrupted one bit for bit.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tasks.metrics import is_loss
from training.loop.distributed import World
from training.loop.gradients import accumulate_gradients
from training.loop.loss_monitor import LossMonitor
from training.loop.optimizer import create_optimizer, remove_frozen_gradients, set_learning_rate
from training.loop.precision import autocast_dtype
from training.loop.prefetcher import Prefetcher
from training.loop.run_directory import RunDirectory, StateKind
from training.loop.schedule import LearningRateSchedule
from training.loop.throughput_meter import ThroughputMeter
from training.loop.types import BEST, LAST, Evaluation, LoopSettings, Losses, Phase, Progress
from training.model import cpu
from training.model.heads import BertModel

MAX_SHAPES = 64
"""Batch shapes that torch.compile compiles; fine-tuning on up to 512 tokens has about 32."""


def train(
    model: BertModel,
    phases: Sequence[Phase],
    losses_of: Losses,
    *,
    num_steps: int,
    settings: LoopSettings,
    run: RunDirectory,
    weights: Mapping[str, float] | None = None,
    evaluation: Evaluation | None = None,
    monitor: LossMonitor | None = None,
    label: str = "train",
) -> Progress:
    """Train for `num_steps` optimizer steps, or until time or patience is over; resume if the run has a state.

    Args:
        model: network, trained in place.
        losses_of: function from network and batch to losses by name, each summed over its targets.
        num_steps: optimizer steps, at most.
        settings: learning rate, batch sizes, seed, intervals of logs and states.
        run: run directory after `begin`.
        weights: weight of each loss in their sum; 1 for losses without an entry.
        evaluation: scores during training, computed on the main process.
        monitor: monitor of the losses; None for one without a plateau.

    Returns:
        Progress of the run at the weights that it leaves. Weights that `--select` chooses are on the main process only.

    Raises:
        DivergedError: if loss or gradient is NaN or infinite.
        ValueError: if the global batch does not divide among the processes, or no score is called like `--select`.
        KeyboardInterrupt: if a process was interrupted, after saving a state.
    """
    world, weights = run.world, weights or {}
    if settings.global_batch_size % world.size:
        raise ValueError(
            f"global_batch_size `{settings.global_batch_size}` is not a multiple of {world.size} processes"
        )
    world.barrier()  # the main process may come from an evaluation, and collectives below have a short timeout
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
    monitor = monitor or LossMonitor()
    if evaluation and settings.select not in (LAST, BEST):  # an unknown score is refused before hours of training
        selecting_score(world.on_main(evaluation.scores), settings.select)
    progress = run.load_state(model, optimizer, monitor)
    monitor.start(num_steps, world.device)
    schedule = LearningRateSchedule(num_steps, settings, [phase.end for phase in phases])
    dtype = autocast_dtype(settings.dtype, world.device)
    meter = ThroughputMeter(model, progress, label=label, schedule=schedule, dtype=dtype, world=world)

    def is_over() -> bool:
        return schedule.is_over(progress) or progress.num_worse >= (settings.patience or math.inf)

    def save(kind: StateKind) -> None:
        run.save_state(model, optimizer, progress, monitor, keep=settings.keep_last, kind=kind)

    with closing(meter), Prefetcher(phases, settings, world) as prefetcher, delayed_signals() as signals:
        while not is_over():
            # Phase and learning rate
            if (phase := schedule.phase(progress)) != progress.phase:
                progress.phase, progress.epoch, progress.index = phase, 0, 0
            learning_rate = schedule.learning_rate(progress)
            set_learning_rate(optimizer, learning_rate)

            # Batches. The seed is set anew in each step, so that dropout in a resumed run does not depend on the past,
            # and differs between processes, which have different sequences.
            torch.manual_seed((settings.seed * 1_000_003 + progress.step) * 4096 + world.rank)
            position, batches, wait_s = prefetcher.take(progress.data_position)
            progress.epoch, progress.index = position.epoch, position.index

            # Forward and backward. Clock and interrupts travel with the token counts: all processes must agree when the
            # time is up, and stop after the same step.
            network.train()  # an evaluation may have changed it
            totals = accumulate_gradients(
                *(network, batches, losses_of, settings, world),
                weights=weights,
                elapsed_s=meter.elapsed_s if world.is_main else 0.0,
                is_interrupted=bool(signals),
            )

            # Optimizer. It skips the update if loss or gradient is NaN or infinite, which the monitor decides on the
            # device: reading a number in each step would make the GPU wait for the CPU.
            remove_frozen_gradients(optimizer, progress.step)
            grad_norm = nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
            optimizer.found_inf = monitor.observe(progress, totals.losses, grad_norm)  # type: ignore[attr-defined]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

            # Progress
            progress.step, progress.index = progress.step + 1, progress.index + 1
            progress.num_tokens += totals.num_tokens
            progress.elapsed_s = totals.elapsed_s
            meter.count(batches, totals.num_tokens, wait_s, progress)

            # Log, evaluate, save: only now numbers are read, and never from weights after a bad step
            is_last = schedule.is_over(progress)
            must_log = is_last or progress.step % settings.log_every == 0
            must_evaluate = evaluation is not None and (is_last or _is_due(progress.step, evaluation.every))
            must_save = settings.checkpoint_every > 0 and (is_last or _is_due(progress.step, settings.checkpoint_every))
            if must_log or must_evaluate or must_save:
                monitor.check_finite()
            if must_log and world.is_main:
                values = {name: float(value) for name, value in totals.losses.items()}
                loss = sum(weights.get(name, 1.0) * value for name, value in values.items())
                warning = monitor.warning(schedule.step(progress), values, loss)
                run.log(
                    {"step": progress.step, "epoch": progress.epoch, **values, "loss": loss}
                    | {"num_tokens": progress.num_tokens, **meter.report(loss)}
                    | ({"warning": warning} if warning else {})
                    | {"learning_rate": learning_rate, "grad_norm": float(grad_norm)}
                )
            if evaluation is not None and must_evaluate:
                start = time.perf_counter()
                scores = world.on_main(evaluation.scores)
                run.log({"step": progress.step, **{f"eval_{name}": value for name, value in scores.items()}})
                score = selecting_score(scores, settings.select)
                progress.num_worse += 1
                if math.isfinite(score) and (progress.best_score is None or score > progress.best_score):
                    progress.best_score, progress.num_worse = score, 0
                    if settings.checkpoint_every:
                        save("best")
                meter.skip(time.perf_counter() - start)
            if must_save or (settings.checkpoint_every and is_over()):
                save("step")
            if totals.is_interrupted:
                break

        # An interrupt may also have come since the last step began
        if world.sum(torch.tensor(float(len(signals)))):
            monitor.check_finite()
            save("step")
            run.close()
            raise KeyboardInterrupt(f"interrupted after step {progress.step:,}; the same command resumes there")

    run.close()
    world.barrier()
    if settings.select != LAST and world.is_main:
        if not schedule.is_over(progress):
            reason = f"no better score on dev in {progress.num_worse} evaluations"
            print(f"stopped after step {progress.step:,}: {reason}", flush=True)
        progress = run.load_best(model)
        by = "" if settings.select == BEST else f" by {settings.select}"
        print(f"selected: step {progress.step:,}, the best on dev{by}", flush=True)
    return progress


def selecting_score(scores: Mapping[str, float], select: str) -> float:
    """Return the score that selects weights, so that higher is better.

    Args:
        select: setting of the loop; `last` and `best` are for the first score.

    Raises:
        ValueError: if there is no such score.
    """
    name = next(iter(scores)) if select in (LAST, BEST) else select
    if name not in scores:
        raise ValueError(f"no score `{name}` on dev: --select is one of {LAST}, {BEST}, {', '.join(scores)}")
    return -scores[name] if is_loss(name) else scores[name]


def _network(model: BertModel, settings: LoopSettings, world: World) -> nn.Module:
    """Return the model compiled if the settings ask for it, else with packed batches on CPUs; in DDP with its peers."""
    compiles = settings.compile == "on" or (settings.compile == "auto" and world.device.type == "cuda")
    may_pack = settings.packing == "auto" and world.device.type == "cpu" and not compiles
    model.bert.packs = may_pack and not model.bert.unpackable
    if may_pack and model.bert.unpackable and world.is_main:
        print(f"note: batches are padded, not packed: {model.bert.unpackable}", flush=True)
    network: nn.Module = model
    if compiles:  # which needs few shapes, so never packed batches
        torch._dynamo.config.recompile_limit = MAX_SHAPES
        network = torch.compile(network, dynamic=False)  # type: ignore[assignment]
    return DistributedDataParallel(network) if world.size > 1 else network


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


@contextmanager
def delayed_signals() -> Iterator[list[int]]:
    """Delay Ctrl-C and SIGTERM (a preempted machine) until the current step is done.

    Yields a list that receives the first signal; a second one has its usual effect. Outside of the main thread no
    signal is delayed.
    """
    received: list[int] = []
    before: dict[signal.Signals, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def record(number: int, frame: FrameType | None) -> None:
        received.append(number)
        restore()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
                before[number] = signal.signal(number, record)
    try:
        yield received
    finally:
        restore()
