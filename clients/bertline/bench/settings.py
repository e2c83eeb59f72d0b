"""The options of `bertline bench`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

import grpc

from bertline._connection import Priority
from bertline.bench.load_generator import Arrivals, Load
from bertline.jobs.read.sources import Format

NumberT = TypeVar("NumberT", int, float)


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """The options of `bertline bench`; each is named where it differs from its field.

    Raises:
        ValueError: when one is out of range, or excludes another.
    """

    target: str = "127.0.0.1:50051"
    credentials: grpc.ChannelCredentials | None = None
    token: str | None = field(default=None, repr=False)
    model: str = ""
    """`--model NAME` or `NAME/VERSION`. Default: the only one loaded."""
    version: str = ""
    input_path: str | None = None
    """`--input FILE`, URL or a pattern of files: texts, or rows with the columns that the command for the task reads;
    `-` is standard input. Default: built-in texts of 2 to 130 words."""
    format: Format | None = None
    """Of the input. Default: what its name says, else a text a line."""
    batch_size: int = 1
    """Texts in each call."""
    concurrency: tuple[int, ...] = ()
    """`--concurrency 8` or `--concurrency 1,4,16`: calls in flight, one run for each number. Default: 8."""
    rate: tuple[float, ...] = ()
    """`--rate 100` or `--rate 100,200`: calls due a second, whatever became of those before; not with
    --concurrency."""
    arrivals: Arrivals = "poisson"
    """With --rate: `poisson`, as of many callers who know nothing of each other, or `constant` gaps."""
    max_in_flight: int = 1000
    """With --rate: calls that are due beyond it wait in the client, which counts as latency."""
    duration_s: float | None = None
    """`--duration SECONDS` of each run; calls under way at its end are awaited. Default: 10."""
    num_requests: int | None = None
    """`--requests N`: calls of each run, instead of --duration."""
    warm_up_s: float = 1.0
    """`--warm-up SECONDS` of the same load before each run, left out of its figures."""
    timeout_s: float = 30.0
    """`--timeout SECONDS` that a call may take; it is the call's deadline, which the server knows too."""
    channels: int = 1
    """Connections, used in turn."""
    priority: Priority = "bulk"
    """`--priority bulk` gives way to the calls of others on a busy server; `interactive` competes with them."""
    truncate: bool = True
    """Cut texts that are too long instead of having them refused."""
    seed: int = 0
    """Of --arrivals poisson."""

    def __post_init__(self) -> None:
        if self.concurrency and self.rate:
            raise ValueError("give --concurrency (calls in flight) or --rate (calls a second), not both")
        if self.duration_s is not None and self.num_requests is not None:
            raise ValueError("give --duration or --requests, not both")
        if self.arrivals not in get_args(Arrivals):
            raise ValueError(f"--arrivals is one of {', '.join(get_args(Arrivals))}: `{self.arrivals}`")
        if self.priority not in get_args(Priority):
            raise ValueError(f"--priority is one of {', '.join(get_args(Priority))}: `{self.priority}`")
        if self.max_in_flight < 1:
            raise ValueError(f"--max-in-flight must be at least 1: `{self.max_in_flight}`")
        counts = {"batch-size": self.batch_size, "channels": self.channels, "requests": self.num_requests}
        for name, value in [*counts.items(), *(("concurrency", value) for value in self.concurrency)]:
            if value is not None and value < 1:
                raise ValueError(f"--{name} must be at least 1: `{value}`")
        seconds = {"duration": self.duration_s, "timeout": self.timeout_s}
        for name, number in [*seconds.items(), *(("rate", value) for value in self.rate)]:
            if number is not None and not 0 < number < math.inf:
                raise ValueError(f"--{name} must be above 0, and finite: `{number:g}`")
        if not 0 <= self.warm_up_s < math.inf:
            raise ValueError(f"--warm-up must be 0 or more seconds: `{self.warm_up_s:g}`")

    def loads(self) -> list[Load]:
        """One for each run."""
        duration_s = 10.0 if self.duration_s is None and self.num_requests is None else self.duration_s
        shared: dict[str, Any] = {
            "duration_s": duration_s,
            "num_calls": self.num_requests,
            "timeout_s": self.timeout_s,
            "arrivals": self.arrivals,
            "max_in_flight": self.max_in_flight,
            "seed": self.seed,
        }
        if self.rate:
            return [Load(rate=rate, **shared) for rate in self.rate]
        return [Load(concurrency=number, **shared) for number in self.concurrency or (8,)]


def read_numbers(option: str, text: str, kind: type[NumberT]) -> tuple[NumberT, ...]:
    """Numbers with commas between them.

    Args:
        option: for the message.
        kind: int or float.

    Raises:
        ValueError: when something else came.
    """
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"{option} is {what}, or several with commas between them: `{text}`") from None
