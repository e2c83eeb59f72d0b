"""Processes of a run: sums over all of them, and work on the main one only."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from training.checkpoint.hub import hub_origin, resolve_checkpoint
from training.command_line.parent import die_with_parent

T = TypeVar("T")
CPU = torch.device("cpu")

LONGEST_WAIT = timedelta(days=30)
"""Longest work of the main process that the others wait for, such as an evaluation. Sums of gradients have
torch.distributed's own timeout. If a process dies, the others fail immediately in both cases."""

LAUNCHER = "TRAINING_LAUNCHER_PID"
"""Environment variable with the process id of `training.launch`."""


@dataclass(frozen=True)
class World:
    """Rank and device of this process, and the number of all."""

    rank: int
    size: int
    device: torch.device
    main_group: Any = None
    """Process group with the timeout `LONGEST_WAIT`, to wait for the main process; None for the default group."""

    @property
    def is_main(self) -> bool:
        """True if this process writes and reports."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all processes, on its own device."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Concatenate tensors of one shape from all processes; gradients flow back to the process of each part."""
        return cast(torch.Tensor, _Gather.apply(values)) if self.size > 1 else values

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier(self.main_group)

    def on_main(self, work: Callable[[], T]) -> T:
        """Run a function on the main process only.

        Returns:
            Its result, in all processes.

        Raises:
            ValueError, OSError: of the main process, in all processes.
        """
        outcome: list[Any] = [None, None]  # result, error
        if self.is_main:
            try:
                outcome[0] = work()
            except (ValueError, OSError) as error:
                outcome[1] = error
        if self.size > 1:
            dist.broadcast_object_list(outcome, group=self.main_group)
        if outcome[1] is not None:
            raise outcome[1]
        return cast(T, outcome[0])


class _Gather(torch.autograd.Function):
    """Gather tensors of all processes; the gradient of a part is the sum of all processes' gradients."""

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


@contextmanager
def world() -> Iterator[World]:
    """Join the processes that `torchrun` started (nccl on GPUs, else gloo); without it, a world of one process.

    Raises:
        ValueError: if there is no GPU for this process.
        ConnectionError: if another process has ended; that one reports the reason.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent(int(os.environ.get(LAUNCHER, os.getppid())))
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
        raise ConnectionError(f"process {rank} has lost the others; see their messages ({reason})") from error
    # not after an error: a network that its traceback holds would wait for its peers for ever
    dist.destroy_process_group()


def _store() -> dist.Store:
    """Return torchrun's store, with a prefix for each restart.

    torchrun keeps one store over restarts. A restarted process could find the address of its dead predecessor, and
    fail or hang.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return dist.TCPStore(host, port, is_master=os.environ["RANK"] == "0")
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"restart-{restart}", dist.TCPStore(host, port, is_master=False))


def resolve_on_all(checkpoint: Path, peers: World) -> Path:
    """Resolve a checkpoint in each process; the main one downloads first, and the others take the same commit."""
    found = peers.on_main(lambda: resolve_checkpoint(checkpoint))
    origin = hub_origin(found)
    return found if peers.is_main or found == checkpoint or not origin else resolve_checkpoint(str(origin))
