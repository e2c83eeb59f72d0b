"""Claim: on a CPU, a pretraining step is 2.1 to 4.2 times as fast as transformers', at half the rate of plain matmuls.

    python -m benchmarks.training_step

The factor is 1.7 to 2.2 if malloc keeps freed memory for transformers, too. A step is masked LM and next sentence
prediction: forward, backward, clipping and fused AdamW, in bf16 autocast. Ours and transformers' BertForPreTraining run
in separate processes, in turns. `training.model.flops` counts the FLOPs for all. The rate of plain matmuls is that of
large bf16 matrices in the same run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Annotated, Any

import torch

from benchmarks.worker import Worker
from tasks.schema import Bounds
from training.bounds import COUNT, check_numbers
from training.checkpoint import create_model
from training.command import command, parse
from training.loop.optimizer import create_optimizer
from training.loop.types import Batch
from training.model import cpu
from training.model.config import EncoderConfig
from training.model.flops import flops_per_token, measured_peak
from training.objectives.masked_lm import MaskedLM

Step = Callable[[], None]
Wrap = Callable[[torch.nn.Module], torch.nn.Module]
CPU = torch.device("cpu")
LENGTH = Bounds(least=4, most=EncoderConfig.max_position_embeddings)
"""Tokens of a sequence that the networks can read."""


@dataclass(frozen=True, kw_only=True)
class TrainingStepSettings:
    """Compare the time of a pretraining step with transformers."""

    num_hidden_layers: int = 4
    hidden_size: int = 256
    num_attention_heads: int = 4
    vocab_size: int = 8192
    batch_size: Annotated[int, COUNT] = 32
    length: Annotated[int, LENGTH] = 128
    dropout: tuple[float, ...] = (0.1, 0.0)
    rounds: Annotated[int, COUNT] = 10
    steps: Annotated[int, Bounds(least=2)] = 4
    """Steps per round; the first one does not count."""

    def __post_init__(self) -> None:
        check_numbers(self)


def ours(
    settings: TrainingStepSettings,
    dropout: float,
    *,
    device: torch.device = CPU,
    wrap: Wrap = lambda network: network,
    attention_mask: torch.Tensor | None = None,
) -> Step:
    """Return a step of Bertline's training loop.

    Args:
        wrap: compiles the network, say.
        attention_mask: of the batch; None for sequences without padding.
    """
    cpu.keep_memory()
    model = create_model("masked-lm", config_of(settings), dropout=dropout).train().to(device)
    network = wrap(model)
    optimizer = create_optimizer(model, weight_decay=0.01, betas=(0.9, 0.999))
    input_ids, token_type_ids, labels, next_labels = _batch(settings, device)
    positions = labels.flatten().ne(-100).nonzero().flatten()
    mask = None if attention_mask is None else attention_mask.to(device)
    inputs: dict[str, Any] = {"input_ids": input_ids, "token_type_ids": token_type_ids, "attention_mask": mask}
    batch = Batch(
        inputs | {"masked_positions_N": positions},
        {"mlm": labels.flatten()[positions], "nsp": next_labels},
        {"mlm": len(positions), "nsp": len(next_labels)},
        input_ids.numel(),
    )

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            losses = MaskedLM().losses(network, batch)
        torch.stack([value / batch.counts[name] for name, value in losses.items()]).sum().backward()
        _update(model, optimizer)

    return step


def transformers(
    settings: TrainingStepSettings,
    dropout: float,
    *,
    device: torch.device = CPU,
    wrap: Wrap = lambda network: network,
) -> Step:
    """Return a step of transformers' BertForPreTraining; arguments as those of `ours`."""
    import transformers

    config = transformers.BertConfig(
        **{name: getattr(config_of(settings), name) for name in ("vocab_size", "hidden_size", "num_hidden_layers")},
        num_attention_heads=settings.num_attention_heads,
        intermediate_size=4 * settings.hidden_size,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    model = transformers.BertForPreTraining(config).train().to(device)
    network = wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    input_ids, token_type_ids, labels, next_labels = _batch(settings, device)
    inputs = {"input_ids": input_ids, "token_type_ids": token_type_ids, "labels": labels}

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = network(**inputs, next_sentence_label=next_labels).loss
        loss.backward()
        _update(model, optimizer)

    return step


def transformers_keeping_memory(settings: TrainingStepSettings, dropout: float) -> Step:
    """Return a step of transformers, with malloc set to keep freed memory, as in ours."""
    cpu.keep_memory()
    return transformers(settings, dropout)


def _update(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def config_of(settings: TrainingStepSettings) -> EncoderConfig:
    """Return the shape of the network."""
    return EncoderConfig(
        vocab_size=settings.vocab_size,
        hidden_size=settings.hidden_size,
        num_hidden_layers=settings.num_hidden_layers,
        num_attention_heads=settings.num_attention_heads,
        intermediate_size=4 * settings.hidden_size,
    )


def _batch(settings: TrainingStepSettings, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return random tokens, 15% of each sequence masked."""
    generator = torch.Generator().manual_seed(0)
    shape = (settings.batch_size, settings.length)
    input_ids = torch.randint(5, settings.vocab_size, shape, generator=generator)
    token_type_ids = (torch.arange(settings.length) >= settings.length // 2).long().expand(shape).contiguous()
    chosen = torch.rand(shape, generator=generator).argsort(-1) < round(0.15 * settings.length)
    labels = input_ids.masked_fill(~chosen, -100)
    next_labels = torch.randint(2, shape[:1], generator=generator)
    return tuple(tensor.to(device) for tensor in (input_ids, token_type_ids, labels, next_labels))


@contextmanager
def worker(
    create: Callable[[TrainingStepSettings, float], Step], settings: TrainingStepSettings, dropout: float
) -> Iterator[Worker]:
    """Run a process that measures a round of steps for each message."""
    found = Worker(_serve, create, settings, dropout)
    try:
        found.receive()
        yield found
    finally:
        found.close()


def _serve(
    connection: Connection,
    create: Callable[[TrainingStepSettings, float], Step],
    settings: TrainingStepSettings,
    dropout: float,
) -> None:
    torch.manual_seed(0)
    step = create(settings, dropout)
    for _ in range(3):
        step()
    connection.send("ready")
    while connection.recv():
        times = []
        for _ in range(settings.steps):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        connection.send(times[1:])


def compare(settings: TrainingStepSettings, dropout: float) -> None:
    """Print median times, and the speed relative to transformers without and with kept memory."""
    creators = (ours, transformers, transformers_keeping_memory)
    times: dict[str, list[float]] = {create.__name__: [] for create in creators}
    peaks = []
    with (
        worker(ours, settings, dropout) as a,
        worker(transformers, settings, dropout) as b,
        worker(transformers_keeping_memory, settings, dropout) as c,
    ):
        for _ in range(settings.rounds):
            for name, each in zip(times, (a, b, c), strict=True):
                each.send("go")
                times[name] += each.receive()
            peaks.append(measured_peak(torch.device("cpu"), torch.bfloat16))
    peak = statistics.median(peaks)
    per_token = flops_per_token(
        config_of(settings), length=settings.length, predicted=round(0.15 * settings.length) / settings.length
    )
    print(f"dropout {dropout}; bf16 matmuls: {peak / 1e9:,.0f} GFLOP/s; {per_token / 1e6:.1f} MFLOP per token")
    bases = [statistics.median(times[name]) for name in ("transformers", "transformers_keeping_memory")]
    for name, values in times.items():
        median = statistics.median(values)
        rate = settings.batch_size * settings.length / median
        fraction = rate * per_token / peak
        print(
            f"  {name:28} {median * 1e3:7.1f} ms {rate:9,.0f} tokens/s {rate * per_token / 1e9:6.0f} GFLOP/s "
            f"{fraction:6.1%} of the matmuls {bases[0] / median:5.2f}x {bases[1] / median:5.2f}x"
        )


@command
def main() -> None:
    """Run the benchmark."""
    settings = parse(TrainingStepSettings, "benchmarks.training_step", __doc__)
    for dropout in settings.dropout:
        compare(settings, dropout)


if __name__ == "__main__":
    main()
