"""Claim: on a CPU a pretraining step is 3.2 to 4.2 times as fast as transformers' (1.9 to 2.2 times where malloc keeps
memory for it, too), at half the rate of plain products.

    python -m benchmarks.training_step

A step of masked LM and next sentence prediction (forward, backward, clipping, fused AdamW, in bf16 autocast): ours and
transformers' BertForPreTraining, each in a process of its own, in turns. FLOPs are counted by `training.model.flops`,
for all alike; the rate of matrix products is that of large bf16 products in the same run.
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
from training.bounds import COUNT, Bounds, check_numbers
from training.checkpoint import create_model
from training.command import command, parse
from training.loop.optimizer import create_optimizer
from training.loop.types import Batch
from training.model import cpu
from training.model.encoder import EncoderConfig
from training.model.flops import flops_per_token, measured_peak
from training.pretraining_objectives import MaskedLM

Step = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Time pretraining steps against transformers."""

    num_hidden_layers: int = 4
    hidden_size: int = 256
    num_attention_heads: int = 4
    vocab_size: int = 8192
    batch_size: Annotated[int, COUNT] = 32
    length: Annotated[int, Bounds(least=4)] = 128
    dropout: tuple[float, ...] = (0.1, 0.0)
    rounds: Annotated[int, COUNT] = 10
    steps: Annotated[int, Bounds(least=2)] = 4
    """Steps a round; the first of them is not counted."""

    def __post_init__(self) -> None:
        check_numbers(self)


def ours(arguments: Arguments, dropout: float) -> Step:
    """A step of our loop's parts."""
    cpu.keep_memory()
    model = create_model("masked-lm", _config(arguments), dropout=dropout).train()
    optimizer = create_optimizer(model, weight_decay=0.01, betas=(0.9, 0.999))
    input_ids, token_type_ids, labels, next_labels = _batch(arguments)
    positions = labels.flatten().ne(-100).nonzero().flatten()
    inputs: dict[str, Any] = {"input_ids": input_ids, "token_type_ids": token_type_ids, "attention_mask": None}
    batch = Batch(
        inputs | {"masked_positions_N": positions},
        {"mlm": labels.flatten()[positions], "nsp": next_labels},
        {"mlm": len(positions), "nsp": len(next_labels)},
        input_ids.numel(),
    )

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            losses = MaskedLM().losses(model, batch)
        torch.stack([value / batch.counts[name] for name, value in losses.items()]).sum().backward()
        _update(model, optimizer)

    return step


def transformers(arguments: Arguments, dropout: float) -> Step:
    """The same with transformers' network."""
    import transformers

    config = transformers.BertConfig(
        **{name: getattr(_config(arguments), name) for name in ("vocab_size", "hidden_size", "num_hidden_layers")},
        num_attention_heads=arguments.num_attention_heads,
        intermediate_size=4 * arguments.hidden_size,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    model = transformers.BertForPreTraining(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    input_ids, token_type_ids, labels, next_labels = _batch(arguments)
    inputs = {"input_ids": input_ids, "token_type_ids": token_type_ids, "labels": labels}

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**inputs, next_sentence_label=next_labels).loss
        loss.backward()
        _update(model, optimizer)

    return step


def transformers_keeping_memory(arguments: Arguments, dropout: float) -> Step:
    """The same, with malloc told to keep what is freed, as ours is."""
    cpu.keep_memory()
    return transformers(arguments, dropout)


def _update(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _config(arguments: Arguments) -> EncoderConfig:
    return EncoderConfig(
        vocab_size=arguments.vocab_size,
        hidden_size=arguments.hidden_size,
        num_hidden_layers=arguments.num_hidden_layers,
        num_attention_heads=arguments.num_attention_heads,
        intermediate_size=4 * arguments.hidden_size,
    )


def _batch(arguments: Arguments) -> tuple[torch.Tensor, ...]:
    """Random tokens, 15% of each sequence to be predicted."""
    generator = torch.Generator().manual_seed(0)
    shape = (arguments.batch_size, arguments.length)
    input_ids = torch.randint(5, arguments.vocab_size, shape, generator=generator)
    token_type_ids = (torch.arange(arguments.length) >= arguments.length // 2).long().expand(shape).contiguous()
    chosen = torch.rand(shape, generator=generator).argsort(-1) < round(0.15 * arguments.length)
    labels = input_ids.masked_fill(~chosen, -100)
    return input_ids, token_type_ids, labels, torch.randint(2, shape[:1], generator=generator)


@contextmanager
def worker(create: Callable[[Arguments, float], Step], arguments: Arguments, dropout: float) -> Iterator[Worker]:
    """A process that times a round of steps whenever it is sent something."""
    found = Worker(_serve, create, arguments, dropout)
    try:
        found.receive()
        yield found
    finally:
        found.close()


def _serve(
    connection: Connection, create: Callable[[Arguments, float], Step], arguments: Arguments, dropout: float
) -> None:
    torch.manual_seed(0)
    step = create(arguments, dropout)
    for _ in range(3):
        step()
    connection.send("ready")
    while connection.recv():
        times = []
        for _ in range(arguments.steps):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        connection.send(times[1:])


def compare(arguments: Arguments, dropout: float) -> None:
    """Print a table of medians, and how many times as fast as transformers, as it comes and with memory kept."""
    creators = (ours, transformers, transformers_keeping_memory)
    times: dict[str, list[float]] = {create.__name__: [] for create in creators}
    peaks = []
    with (
        worker(ours, arguments, dropout) as a,
        worker(transformers, arguments, dropout) as b,
        worker(transformers_keeping_memory, arguments, dropout) as c,
    ):
        for _ in range(arguments.rounds):
            for name, each in zip(times, (a, b, c), strict=True):
                each.send("go")
                times[name] += each.receive()
            peaks.append(measured_peak(torch.device("cpu"), torch.bfloat16))
    peak = statistics.median(peaks)
    per_token = flops_per_token(
        _config(arguments), length=arguments.length, predicted=round(0.15 * arguments.length) / arguments.length
    )
    print(f"dropout {dropout}; bf16 products: {peak / 1e9:,.0f} GFLOP/s; {per_token / 1e6:.1f} MFLOP a token")
    bases = [statistics.median(times[name]) for name in ("transformers", "transformers_keeping_memory")]
    for name, values in times.items():
        median = statistics.median(values)
        rate = arguments.batch_size * arguments.length / median
        share = rate * per_token / peak
        print(
            f"  {name:28} {median * 1e3:7.1f} ms {rate:9,.0f} tokens/s {rate * per_token / 1e9:6.0f} GFLOP/s "
            f"{share:6.1%} of the products {bases[0] / median:5.2f}x {bases[1] / median:5.2f}x"
        )


@command
def main() -> None:
    """Command line."""
    arguments = parse(Arguments, "benchmarks.training_step", __doc__)
    for dropout in arguments.dropout:
        compare(arguments, dropout)


if __name__ == "__main__":
    main()
