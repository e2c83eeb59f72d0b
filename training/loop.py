"""The training loop that pretraining and fine-tuning share.

A run is a directory:

    runs/<name>/recipe.json           what was asked for
    runs/<name>/metrics.jsonl         a line every `log_every` steps, and one an evaluation
    runs/<name>/state/step-00000500/  resumable state: weights, optimizer, position
    runs/<name>/checkpoint/           the result

Starting the same command again goes on from the last state. Each step's randomness is a function of (seed, step), and
each batch one of (seed, epoch, index), so a resumed run repeats the uninterrupted one bit for bit on one process.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tasks.files import atomic_directory, atomic_write
from training.distributed import World
from training.optimizer import create_optimizer, learning_rate
from training.progress import Progress

Dtype = Literal["auto", "fp32", "bf16"]
METRICS_FILE = "metrics.jsonl"
RECIPE_FILE = "recipe.json"
PLACES_AND_PACE = ("run_dir", "micro_batch_size", "log_every", "checkpoint_every", "keep_last")
"""Fields of a recipe that may change when a run is resumed."""


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
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates of the moments."""
    clip_norm: float = 1.0
    """Gradients are scaled down to this global norm."""
    dropout: float | None = None
    """Dropout of hidden states and attention; None for the shape's or checkpoint's own."""
    dtype: Dtype = "auto"
    """Arithmetic of matrix products: bf16 autocast, fp32, or auto (bf16 where the hardware has it)."""
    seed: int = 0
    log_every: int = 10
    """Steps between lines in metrics.jsonl."""
    checkpoint_every: int = 500
    """Steps between resumable states; 0 for none."""
    keep_last: int = 2
    """Resumable states to keep."""

    def __post_init__(self) -> None:
        for name in ("global_batch_size", "micro_batch_size", "log_every", "keep_last"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1: `{getattr(self, name)}`")
        if not 0 <= self.warmup_ratio <= 1 or self.learning_rate <= 0 or self.seed < 0:
            raise ValueError("warmup_ratio lies between 0 and 1, learning_rate above 0, seed is not negative")
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


Objective = Callable[[nn.Module, Batch], dict[str, Tensor]]
"""The losses of a batch by name, each summed over its targets."""


@dataclass
class Position:
    """How far a run has come."""

    step: int = 0
    epoch: int = 0
    index: int = 0
    """Global batch within the epoch."""
    num_tokens: int = 0
    """Tokens seen, over all processes, without padding."""


class DivergedError(ValueError):
    """The loss is no longer a number."""


class Run:
    """A run directory: its recipe, metrics and states."""

    def __init__(self, path: Path, world: World) -> None:
        self.path = path
        self.world = world
        self.checkpoint_path = path / "checkpoint"

    def check_recipe(self, recipe: Mapping[str, Any], *, may_differ: tuple[str, ...] = ()) -> None:
        """Write down the recipe, or compare with the one that the run was started with.

        Raises:
            ValueError: naming the field that differs.
        """
        path = self.path / RECIPE_FILE
        # A run that failed before its first state leaves nothing to go on from: its mistake may be mended in place.
        if path.is_file() and (self.states() or self.checkpoint_path.exists()):
            before = _json_object(path.read_text(encoding="utf-8"), f"`{path}`")
            for key in recipe.keys() | before.keys():
                if key not in may_differ and recipe.get(key) != before.get(key):
                    was, now = before.get(key), recipe.get(key)
                    raise ValueError(
                        f"run `{self.path}` was started with {key} `{was}`, not `{now}`; choose another --run-dir"
                    )
        self.world.barrier()
        if self.world.is_main:
            atomic_write(path, (json.dumps(recipe, indent=2) + "\n").encode())

    def states(self) -> list[Path]:
        """Resumable states, oldest first."""
        return sorted((self.path / "state").glob("step-*"))

    def save_state(self, model: nn.Module, optimizer: torch.optim.Optimizer, position: Position, keep: int) -> None:
        """Write a state, then drop the oldest ones."""
        if self.world.is_main:
            with atomic_directory(self.path / "state" / f"step-{position.step:08d}", replace=True) as directory:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "position": asdict(position)}
                torch.save(state, directory / "state.pt")
            for old in self.states()[:-keep]:
                shutil.rmtree(old)
        self.world.barrier()

    def load_state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Position:
        """Go on from the last state, if there is one; later lines of the metrics are dropped."""
        states = self.states()
        if not states:
            position = Position()
        else:
            path = states[-1] / "state.pt"
            try:
                state = torch.load(path, map_location=self.world.device, weights_only=True)
            except Exception as error:  # a damaged file raises errors of many kinds
                raise ValueError(
                    f"cannot read state `{path}`: {error}; remove it to go on from the one before"
                ) from error
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            position = Position(**state["position"])
        if self.world.is_main:
            kept = [line for line in read_metrics(self.path) if line["step"] <= position.step]
            text = "".join(json.dumps(line) + "\n" for line in kept) if states else ""
            atomic_write(self.path / METRICS_FILE, text.encode())
        return position

    def log(self, values: Mapping[str, Any]) -> None:
        """Append a line to the metrics."""
        if self.world.is_main:
            with open(self.path / METRICS_FILE, "a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")

    def drop_states(self) -> None:
        """Remove the resumable states of a finished run."""
        if self.world.is_main:
            shutil.rmtree(self.path / "state", ignore_errors=True)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics."""
    path = run / METRICS_FILE
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [_json_object(line, f"`{path}`, line {number}") for number, line in enumerate(lines, start=1)]


def _json_object(text: str, place: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{place}: broken JSON ({error}); mend it, or choose another --run-dir") from error
    if not isinstance(values, dict):
        raise ValueError(f"{place}: expected a JSON object; mend it, or choose another --run-dir")
    return values


def train(
    model: nn.Module,
    data: Data,
    objective: Objective,
    *,
    num_steps: int,
    settings: LoopSettings,
    run: Run,
    evaluate: Callable[[], dict[str, float]] | None = None,
    eval_every: int = 0,
    label: str = "train",
) -> Position:
    """Train for `num_steps` optimizer steps, or go on with it.

    Args:
        data: where global batches come from.
        objective: losses of a batch, summed over its targets.
        evaluate: scores of the model as it is; called every `eval_every` steps and at the end, on the main process.
        label: of the progress bar.

    Raises:
        DivergedError: when the loss is no longer a number.
        ValueError: when the batch does not divide among the processes.
    """
    world = run.world
    if settings.global_batch_size % world.size:
        raise ValueError(
            f"global_batch_size `{settings.global_batch_size}` is not a multiple of {world.size} processes"
        )
    model.to(world.device)
    network: nn.Module = DistributedDataParallel(model) if world.size > 1 else model
    optimizer = create_optimizer(model, weight_decay=settings.weight_decay, betas=settings.betas)
    position = run.load_state(model, optimizer)
    warmup_steps = round(settings.warmup_ratio * num_steps)
    meter = _Meter(num_steps, position, label, enabled=world.is_main)
    while position.step < num_steps:
        if position.index >= data.num_batches(position.epoch):
            position.epoch, position.index = position.epoch + 1, 0
        rate = learning_rate(position.step, peak=settings.learning_rate, num_steps=num_steps, warmup_steps=warmup_steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        torch.manual_seed((settings.seed * 1_000_003 + position.step) * 4096 + world.rank)
        batches = [
            data.batch(position.epoch, position.index, part).to(world.device) for part in _parts(settings, world)
        ]
        network.train()
        losses, num_tokens = _backward(network, batches, objective, settings, world)
        norm = nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        position.step, position.index = position.step + 1, position.index + 1
        position.num_tokens += num_tokens
        values = {"step": position.step, "epoch": position.epoch, **losses, "loss": sum(losses.values())}
        if not math.isfinite(values["loss"]):
            raise DivergedError(
                f"the loss is {values['loss']} at step {position.step}; lower --learning-rate or raise warm-up"
            )
        meter.update(values, num_tokens)
        if position.step % settings.log_every == 0 or position.step == num_steps:
            more = {"learning_rate": rate, "grad_norm": float(norm), "num_tokens": position.num_tokens}
            run.log(values | more | {"tokens_per_s": round(meter.tokens_per_s)})
        is_last = position.step == num_steps
        if evaluate and (is_last or (eval_every and position.step % eval_every == 0)):
            if world.is_main:
                run.log({"step": position.step, **{f"eval_{key}": value for key, value in evaluate().items()}})
            world.barrier()
        if settings.checkpoint_every and (is_last or position.step % settings.checkpoint_every == 0):
            run.save_state(model, optimizer, position, settings.keep_last)
    meter.close()
    return position


def _parts(settings: LoopSettings, world: World) -> Iterator[slice]:
    """This process's share of a global batch, in micro-batches."""
    share = settings.global_batch_size // world.size
    first, last = world.rank * share, (world.rank + 1) * share
    for start in range(first, last, settings.micro_batch_size):
        yield slice(start, min(start + settings.micro_batch_size, last))


def _backward(
    network: nn.Module, batches: list[Batch], objective: Objective, settings: LoopSettings, world: World
) -> tuple[dict[str, float], int]:
    """Gradients of the mean losses over the global batch.

    Each loss is a sum over targets divided by their number in the whole global batch, so that the split into processes
    and micro-batches changes nothing. DDP averages gradients over processes, hence the factor.

    Returns:
        The mean losses of the global batch by name, and its number of tokens.
    """
    names = sorted({name for batch in batches for name in batch.counts})
    own = [sum(batch.counts[name] for batch in batches) for name in names] + [sum(b.num_tokens for b in batches)]
    *counts, num_tokens = world.sum(torch.tensor(own, dtype=torch.float64)).tolist()
    totals = torch.zeros(len(names), dtype=torch.float64, device=world.device)
    for number, batch in enumerate(batches):
        is_last = number == len(batches) - 1
        accumulate = (
            network.no_sync() if isinstance(network, DistributedDataParallel) and not is_last else nullcontext()
        )
        with accumulate:
            with autocast(settings.dtype, world.device):
                sums = objective(network, batch)
            losses = [sums[name] / count for name, count in zip(names, counts, strict=True)]
            (torch.stack(losses).sum() * world.size).backward()
        totals += torch.stack(losses).detach().double()
    return dict(zip(names, world.sum(totals).tolist(), strict=True)), int(num_tokens)


def autocast(dtype: Dtype, device: torch.device) -> torch.autocast:
    """Autocast of the dtype asked for; `auto` is bf16 where matrix products in bf16 are in the hardware."""
    return torch.autocast(
        device.type, torch.bfloat16, enabled=dtype == "bf16" or (dtype == "auto" and has_bf16(device))
    )


def has_bf16(device: torch.device) -> bool:
    """Whether the hardware multiplies bf16 matrices."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(torch.cpu.get_capabilities().get("avx512_bf16"))


class _Meter:
    """Progress bar and throughput."""

    def __init__(self, num_steps: int, position: Position, label: str, *, enabled: bool) -> None:
        self._bar = Progress(label, unit="step", total=num_steps, initial=position.step, enabled=enabled)
        self._start, self._num_tokens = time.monotonic(), 0
        self._loss: float | None = None

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second since the start."""
        return self._num_tokens / (time.monotonic() - self._start)

    def update(self, values: Mapping[str, Any], num_tokens: int) -> None:
        """Count a step."""
        self._num_tokens += num_tokens
        self._loss = values["loss"] if self._loss is None else 0.95 * self._loss + 0.05 * values["loss"]
        self._bar.update(1, f"loss {self._loss:.3f}, {self.tokens_per_s:,.0f} tokens/s")

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.close()


def recipe_fields(recipe: Any) -> dict[str, Any]:
    """The fields of a recipe as JSON-compatible values."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(recipe), default=str))
    return values
