"""Gradients of a global batch, accumulated over micro-batches and processes.

Losses that compare all sequences need the vectors of all micro-batches at once. Their gradients are cached (GradCache,
Gao et al. 2021, arXiv 2101.06983): the network first gives all vectors without a graph, then the gradient of each
micro-batch's vectors goes backward through a second pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


@dataclass(frozen=True)
class JointLosses:
    """Losses that compare the vectors of all sequences of a process."""

    vectors: Callable[[nn.Module, Batch], Tensor]
    """Function from network and micro-batch to vectors [examples, ...]."""
    losses: Callable[[Tensor, Mapping[str, Tensor]], dict[str, Tensor]]
    """Function from vectors and targets to losses by name, each summed over its targets."""

    def __call__(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the losses of a whole batch."""
        vectors = self.vectors(network, batch)
        with torch.autocast(vectors.device.type, enabled=False):  # in bf16, cosines over temperature are off by 0.1
            return self.losses(vectors, batch.targets)


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
        losses_of: function from network and micro-batch to losses by name, each summed over its targets. Joint losses
            are those of all micro-batches together.
        weights: weight of each loss in their sum; 1 for losses without an entry.
        elapsed_s: seconds of training by the clock of the main process; 0 on other processes.
        is_interrupted: True if this process was interrupted.
    """
    names = sorted({name for batch in batches for name in batch.counts})
    own_counts = [sum(batch.counts[name] for batch in batches) for name in names]
    own_tokens = sum(batch.num_tokens for batch in batches)
    own = [*map(float, own_counts), float(own_tokens), elapsed_s, float(is_interrupted)]
    *counts, num_tokens, elapsed_s, num_interrupted = world.sum(torch.tensor(own, dtype=torch.float64)).tolist()
    if isinstance(losses_of, JointLosses) and len(batches) > 1:
        losses_of = _cache_gradients(losses_of, network, batches, settings, world)
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


def _cache_gradients(
    joint: JointLosses, network: nn.Module, batches: Sequence[Batch], settings: LoopSettings, world: World
) -> Losses:
    """Return losses of single micro-batches, whose gradients add up to those of the joint losses.

    Both passes of a micro-batch draw the same dropout.
    """
    plain = network.module if isinstance(network, DistributedDataParallel) else network
    seeds: list[int] = torch.randint(2**62, (len(batches),)).tolist()
    parts: list[Tensor] = []
    with torch.no_grad():
        for seed, batch in zip(seeds, batches, strict=True):
            torch.manual_seed(seed)
            with autocast(settings.dtype, world.device):
                parts.append(joint.vectors(plain, batch))
    vectors = torch.cat(parts).requires_grad_()
    targets = {name: torch.cat([batch.targets[name] for batch in batches]) for name in batches[0].targets}
    losses = joint.losses(vectors, targets)
    gradients = {name: torch.autograd.grad(loss, vectors, retain_graph=True)[0] for name, loss in losses.items()}
    sizes = list(map(len, parts))
    remaining = iter(zip(seeds, zip(*(gradients[name].split(sizes) for name in losses), strict=True), strict=True))

    def losses_of(network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        seed, cached = next(remaining)
        torch.manual_seed(seed)
        x = joint.vectors(network, batch)
        slopes = [(x * gradient).sum() for gradient in cached]
        return {
            name: loss.detach() / len(batches) + slope - slope.detach()
            for (name, loss), slope in zip(losses.items(), slopes, strict=True)
        }

    return losses_of
