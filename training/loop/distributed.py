"""One process or many: what `torchrun` says, sums over processes, and who writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from training.parent import end_with

T = TypeVar("T")

LONGEST_WAIT = timedelta(days=30)
"""For what the main process does alone, such as an evaluation. Gradients wait no longer than torch.distributed's own
time; of a process that dies the others hear at once either way."""

LAUNCHER = "TRAINING_LAUNCHER_PID"
"""Environment variable in which `training.launch` says who it is."""


@dataclass(frozen=True)
class World:
    """This process among its peers."""

    rank: int
    size: int
    device: torch.device
    patient: Any = None
    """The group of all processes in which they wait for the main one, up to `LONGEST_WAIT`; None for the default."""

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
        return cast(torch.Tensor, _Gather.apply(values)) if self.size > 1 else values

    def barrier(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            dist.barrier(self.patient)

    def on_main(self, work: Callable[[], T]) -> T:
        """Do something on the main process alone.

        Returns:
            What it made of it, in all processes.

        Raises:
            ValueError, OSError: the main process's, in all of them.
        """
        told: list[Any] = [_attempt(work) if self.is_main else None]
        if self.size > 1:
            dist.broadcast_object_list(told, group=self.patient)
        result, error = told[0]
        if error is not None:
            raise error
        return cast(T, result)


class _Gather(torch.autograd.Function):
    """The tensors of all processes in all of them; a part's gradient is the sum of what each made of it."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, values.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]


def _attempt(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return work(), None
    except (ValueError, OSError) as error:
        return None, error


@contextmanager
def world() -> Iterator[World]:
    """Join the processes that `torchrun` started (nccl on GPUs, else gloo), to end when it does; else a world of one.

    Raises:
        ValueError: when there is no GPU for this process.
        ConnectionError: when a peer has ended, which says itself why.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with(int(os.environ.get(LAUNCHER, os.getppid())))
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = CPU
    if torch.cuda.is_available():
        device = torch.device("cuda", local := int(os.environ.get("LOCAL_RANK", 0)))
        if local >= (count := torch.cuda.device_count()):
            raise ValueError(f"more processes here than GPUs: there are {count}; lower NPROC")
        torch.cuda.set_device(device)
    if size == 1:
        yield World(rank, size, device)
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, store=_store(), rank=rank, world_size=size)
        yield World(rank, size, device, dist.new_group(backend="gloo", timeout=LONGEST_WAIT))
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "gloo/" in str(error)):
            raise
        reason = str(error).splitlines()[0]
        raise ConnectionError(f"process {rank} has lost the others; see what they say ({reason})") from error
    # not after an error: a network that its traceback holds would wait for its peers for ever
    dist.destroy_process_group()


def _store() -> dist.Store:
    """Where the processes find each other: torchrun's, apart for each restart.

    torchrun keeps one store over restarts. In it, a process that was started anew would find the address at which its
    dead predecessor listened, now and then, and fail or hang.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return dist.TCPStore(host, port, is_master=os.environ["RANK"] == "0")
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"restart-{restart}", dist.TCPStore(host, port, is_master=False))


CPU = torch.device("cpu")
