"""Gradients of a global batch, accumulated over micro-batches and processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from training.loop.distributed import World
from training.loop.precision import autocast
from training.loop.types import Batch, LoopSettings, Losses


@dataclass(frozen=True)
class StepTotals:
    """Losses and counts of a step, over all processes."""

    losses: Mapping[str, Tensor]
    """Mean losses of the global batch, on the device."""
    num_tokens: int
    elapsed_s: float
    """Seconds of training, by the clock of the main process."""
    is_interrupted: bool
    """True if a process was interrupted: all processes then stop after the same step."""


def accumulate_gradients(
    network: nn.Module,
    batches: Sequence[Batch],
    losses_of: Losses,
    settings: LoopSettings,
    world: World,
    *,
    weights: Mapping[str, float] | None = None,
    elapsed_s: float = 0.0,
    is_interrupted: bool = False,
) -> StepTotals:
    """Compute the gradients of the mean losses of a global batch.

    Each loss is a sum over targets, divided by their number in the whole global batch. So the split into processes and
    micro-batches changes nothing. DDP averages gradients over processes; the factor `world.size` undoes that.

    Args:
        network: network, possibly compiled or in DDP.
        batches: micro-batches of this process.
        losses_of: function from network and micro-batch to losses by name, each summed over its targets.
        weights: weight of each loss in their sum; 1 for losses without an entry.
        elapsed_s: seconds of training by the clock of the main process; 0 on other processes.
        is_interrupted: True if this process was interrupted.
    """
    names = sorted({name for batch in batches for name in batch.counts})
    own_counts = [sum(batch.counts[name] for batch in batches) for name in names]
    own_tokens = sum(batch.num_tokens for batch in batches)
    own = [*map(float, own_counts), float(own_tokens), elapsed_s, float(is_interrupted)]
    *counts, num_tokens, elapsed_s, num_interrupted = world.sum(torch.tensor(own, dtype=torch.float64)).tolist()
    totals = torch.zeros(len(names), dtype=torch.float64, device=world.device)
    loss_weights = torch.tensor([(weights or {}).get(name, 1.0) for name in names], device=world.device)
    for number, batch in enumerate(batches):
        is_last = number == len(batches) - 1
        accumulate = (
            network.no_sync() if isinstance(network, DistributedDataParallel) and not is_last else nullcontext()
        )
        with accumulate:
            with autocast(settings.dtype, world.device):
                sums = losses_of(network, batch)
            losses = torch.stack([sums[name] / (count or 1.0) for name, count in zip(names, counts, strict=True)])
            (losses.dot(loss_weights) * world.size).backward()
        totals += losses.detach().double()
    means = dict(zip(names, world.sum(totals).unbind(), strict=True))
    return StepTotals(means, int(num_tokens), elapsed_s, bool(num_interrupted))
