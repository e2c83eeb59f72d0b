"""Steps of pretraining without the reading of data: variants in turns, where the time goes, and NCCL."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

from benchmarks.gpu.settings import GpuSettings
from benchmarks.report import Table
from benchmarks.training_step import Step, TrainingStepSettings, config_of, ours, transformers
from benchmarks.worker import Worker
from training.model.flops import flops_per_token, peak_flops

STEPS = 4
"""Steps of a round."""
KINDS = {
    "fused element by element": ("triton",),
    "attention": ("flash", "fmha", "attention", "cudnn", "sdpa"),
    "matrix products": ("gemm", "cutlass", "nvjet", "cublas", "::mm", "addmm", "linear"),
    "optimizer": ("adam", "multi_tensor", "foreach"),
    "embeddings, loss": ("embedding", "index", "softmax", "nll", "gather"),
}
"""Kind of GPU kernels -> parts of their names; the first kind that fits counts."""


def steps(settings: GpuSettings) -> Iterator[Table]:
    """Yield tables of step times and of where the time of our compiled step goes."""
    for length, rows in settings.batches.items():
        yield from _in_worker(_compare, length, rows, settings)
    yield from _in_worker(_compare_nccl, *next(iter(settings.batches.items())), settings)


def _in_worker(work: Any, *arguments: object) -> Iterator[Table]:
    worker = Worker(work, *arguments)
    try:
        while (table := worker.receive()) is not None:
            yield table
    finally:
        worker.close()


def _shape(length: int, rows: int, settings: GpuSettings) -> TrainingStepSettings:
    layers, hidden, heads = settings.largest[1]
    return TrainingStepSettings(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        vocab_size=settings.vocab_size,
        batch_size=rows,
        length=length,
    )


def _compile(network: torch.nn.Module) -> torch.nn.Module:
    return torch.compile(network, dynamic=False)  # type: ignore[return-value]


def _compile_with_cudnn(network: torch.nn.Module) -> torch.nn.Module:
    """Compile a network, with cuDNN's attention."""
    return _WithCudnn(_compile(network))


class _WithCudnn(torch.nn.Module):
    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, **inputs: Any) -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return self.network(**inputs)


def _variants(shape: TrainingStepSettings, settings: GpuSettings) -> dict[str, Callable[[], Step]]:
    """Return functions that create a step, by name."""
    device = settings.torch_device
    wrap: dict[str, Any] = {} if settings.is_dry else {"wrap": _compile}
    own, theirs = (partial(each, shape, 0.1, device=device) for each in (ours, transformers))
    no_dropout = partial(ours, shape, 0.0, device=device)
    mask = torch.ones(shape.batch_size, shape.length, dtype=torch.long)
    mask[::10, shape.length // 2 :] = 0
    creators: dict[str, Callable[[], Step]] = {
        "ours": own,
        "ours, compiled": partial(own, **wrap),
        "ours, compiled, cuDNN's attention": partial(own, wrap=_compile_with_cudnn),
        "ours, compiled, with padding": partial(own, **wrap, attention_mask=mask),
        "ours, compiled, with padding, cuDNN's attention": partial(own, wrap=_compile_with_cudnn, attention_mask=mask),
        "ours, compiled, no dropout": partial(no_dropout, **wrap),
        "transformers": theirs,
        "transformers, compiled": partial(theirs, **wrap),
    }
    if settings.is_dry:
        return {name: create for name, create in creators.items() if "compiled" not in name}
    return creators


def _compare(connection: Connection, length: int, rows: int, settings: GpuSettings) -> None:
    shape = _shape(length, rows, settings)
    creators = _variants(shape, settings)
    title = f"{settings.largest[0]}, a step of {rows} x {length} tokens"
    times, compiled_step, failures = _times(creators, settings)
    connection.send(Table(title, list(_rows(times, shape, settings)), " ".join([_note(settings), *failures])))
    connection.send(Table(f"{title}: time of the GPU, ours", list(_profile(compiled_step, settings))))
    connection.send(None)


def _compare_nccl(connection: Connection, length: int, rows: int, settings: GpuSettings) -> None:
    """Compare a step with and without DDP in a group of one process."""
    backend = "gloo" if settings.is_dry else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    shape, device = _shape(length, rows, settings), settings.torch_device
    total = torch.ones(8, device=device)
    dist.all_reduce(total)
    objects = [{"step": 1}]
    dist.broadcast_object_list(objects)

    def in_ddp(network: torch.nn.Module) -> torch.nn.Module:
        return DistributedDataParallel(network if settings.is_dry else _compile(network))

    alone: dict[str, Any] = {} if settings.is_dry else {"wrap": _compile}
    creators: dict[str, Callable[[], Step]] = {
        "one process": partial(ours, shape, 0.1, device=device, **alone),
        "the same in DDP": partial(ours, shape, 0.1, device=device, wrap=in_ddp),
    }
    times, _, failures = _times(creators, settings)
    title = f"{settings.largest[0]}, {backend} with one process"
    connection.send(Table(title, list(_rows(times, shape, settings)), " ".join(failures)))
    dist.destroy_process_group()
    connection.send(None)


def _times(creators: dict[str, Any], settings: GpuSettings) -> tuple[dict[str, float], Step, list[str]]:
    """Return the median seconds of a step by name, measured in turns; our compiled step; and what failed."""
    made: dict[str, Step] = {}
    failures = []
    for name, create in creators.items():
        torch.manual_seed(0)
        try:
            step = create()
            for _ in range(3):
                step()
        except RuntimeError as error:  # such as no kernel for this attention
            failures.append(f"{name}: {str(error).splitlines()[0]}.")
        else:
            made[name] = step
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(settings.rounds):
        for name, step in made.items():
            step()
            _wait(settings)
            start = time.perf_counter()
            for _ in range(STEPS):
                step()
            _wait(settings)
            times[name].append((time.perf_counter() - start) / STEPS)
    chosen = made.get("ours, compiled") or next(iter(made.values()))
    return {name: statistics.median(found) for name, found in times.items()}, chosen, failures


def _rows(times: dict[str, float], shape: TrainingStepSettings, settings: GpuSettings) -> Iterator[dict[str, Any]]:
    predicted = round(0.15 * shape.length) / shape.length
    flops = flops_per_token(config_of(shape), length=shape.length, predicted=predicted)
    peak = peak_flops(settings.torch_device, torch.bfloat16)
    for name, seconds in times.items():
        rate = shape.batch_size * shape.length / seconds
        yield {"step": name, "ms": 1e3 * seconds, "tokens/s": rate, "MFU, %": 100 * rate * flops / peak}


def _note(settings: GpuSettings) -> str:
    return "" if settings.is_dry else "MFU is relative to the data sheet; padding counts as tokens here."


def _profile(step: Step, settings: GpuSettings) -> Iterator[dict[str, Any]]:
    """Yield the share of each kind of kernel in the time of the GPU, and the longest kernels."""
    from torch.profiler import ProfilerActivity, profile

    step()
    activity = ProfilerActivity.CPU if settings.is_dry else ProfilerActivity.CUDA
    with profile(activities=[activity]) as profiler:
        step()
        _wait(settings)
    times: Counter[str] = Counter()
    for event in profiler.key_averages():
        times[event.key] += event.self_cpu_time_total if settings.is_dry else event.self_device_time_total
    total = sum(times.values())
    kinds: Counter[str] = Counter()
    for name, value in times.items():
        kinds[_kind(name)] += value
    for kind, value in kinds.most_common():
        yield {"kernels": kind, "ms": value / 1e3, "%": 100 * value / total}
    for name, value in times.most_common(12):
        yield {"kernels": f"`{name[:90]}`", "ms": value / 1e3, "%": 100 * value / total}


def _kind(name: str) -> str:
    lower = name.lower()
    found = (kind for kind, parts in KINDS.items() if any(part in lower for part in parts))
    return next(found, "other")


def _wait(settings: GpuSettings) -> None:
    if not settings.is_dry:
        torch.cuda.synchronize()
