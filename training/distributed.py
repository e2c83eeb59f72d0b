"""One process or many: what `torchrun` says, sums over processes, and who writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_gather


@dataclass(frozen=True)
class World:
    """This process among its peers."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process writes and reports."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all processes; one on the CPU without waiting for the GPU."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """The tensors of all processes, of one shape, one after another along the first dimension; gradients come back
        to the process that each part is from."""
        return torch.cat(all_gather(values)) if self.size > 1 else values

    def barrier(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def world() -> Iterator[World]:
    """Join the processes that `torchrun` started (nccl on GPUs, gloo on CPUs); without it, a world of one."""
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else CPU
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if size > 1:
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(rank, size, device)
    finally:
        if size > 1:
            dist.destroy_process_group()


CPU = torch.device("cpu")
