"""Options of `bertline bench`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

import grpc

from bertline._connection import Priority
from bertline.bench.load_generator import Arrivals, LoadProfile
from bertline.jobs.sources import Format

NumberT = TypeVar("NumberT", int, float)


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """Options of `bertline bench`. Docstrings name a flag where it differs from the field.

    Raises:
        ValueError: if an option is out of range, or excludes another one.
    """

    target: str = "127.0.0.1:50051"
    credentials: grpc.ChannelCredentials | None = None
    token: str | None = field(default=None, repr=False)
    model: str = ""
    """`--model NAME` or `NAME/VERSION`. Default: the only loaded model."""
    version: str = ""
    input_path: str | None = None
    """`--input`: file, URL or pattern of files, with texts or with the columns that the task's command reads; `-` for
    standard input. Default: built-in texts of 2 to 130 words."""
    format: Format | None = None
    """Format of the input. Default: inferred from its name, else one text per line."""
    batch_size: int = 1
    """Texts in each call."""
    concurrency: tuple[int, ...] = ()
    """Calls in flight: one run for each number. `--concurrency 8` or `--concurrency 1,4,16`. Default: 8."""
    rate: tuple[float, ...] = ()
    """Calls due per second, even if earlier ones have not ended: one run for each number. `--rate 100` or
    `--rate 100,200`. Not with --concurrency."""
    arrivals: Arrivals = "poisson"
    """Gaps between calls with --rate: `poisson`, as of many independent callers, or `constant`."""
    max_in_flight: int = 1000
    """Maximum number of calls in flight with --rate. Later calls wait in the client; the wait counts as latency."""
    duration_s: float | None = None
    """`--duration`: seconds of each run. Calls in flight at its end are awaited. Default: 10."""
    num_requests: int | None = None
    """`--requests`: calls of each run, instead of --duration."""
    warm_up_s: float = 1.0
    """`--warm-up`: seconds of the same load before each run; not measured."""
    timeout_s: float = 30.0
    """`--timeout`: time limit of a call, in seconds; the server gets it as the deadline."""
    channels: int = 1
    """Connections, used in turn."""
    priority: Priority = "bulk"
    """Priority of the calls: a busy server computes `bulk` calls after `interactive` ones."""
    truncate: bool = True
    """Truncate texts that are too long. If False, the server refuses them."""
    seed: int = 0
    """Random seed of --arrivals poisson."""

    def __post_init__(self) -> None:
        if self.concurrency and self.rate:
            raise ValueError("give --concurrency (calls in flight) or --rate (calls a second), not both")
        if self.duration_s is not None and self.num_requests is not None:
            raise ValueError("give --duration or --requests, not both")
        if self.arrivals not in get_args(Arrivals):
            raise ValueError(f"--arrivals must be one of {', '.join(get_args(Arrivals))}: `{self.arrivals}`")
        if self.priority not in get_args(Priority):
            raise ValueError(f"--priority must be one of {', '.join(get_args(Priority))}: `{self.priority}`")
        if self.max_in_flight < 1:
            raise ValueError(f"--max-in-flight must be at least 1: `{self.max_in_flight}`")
        counts = {"batch-size": self.batch_size, "channels": self.channels, "requests": self.num_requests}
        for name, value in [*counts.items(), *(("concurrency", value) for value in self.concurrency)]:
            if value is not None and value < 1:
                raise ValueError(f"--{name} must be at least 1: `{value}`")
        seconds = {"duration": self.duration_s, "timeout": self.timeout_s}
        for name, number in [*seconds.items(), *(("rate", value) for value in self.rate)]:
            if number is not None and not 0 < number < math.inf:
                raise ValueError(f"--{name} must be above 0 and finite: `{number:g}`")
        if not 0 <= self.warm_up_s < math.inf:
            raise ValueError(f"--warm-up must be 0 or more seconds: `{self.warm_up_s:g}`")

    def profiles(self) -> list[LoadProfile]:
        """Return the load profile of each run."""
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
            return [LoadProfile(rate=rate, **shared) for rate in self.rate]
        return [LoadProfile(concurrency=number, **shared) for number in self.concurrency or (8,)]


def read_numbers(option: str, text: str, kind: type[NumberT]) -> tuple[NumberT, ...]:
    """Parse numbers that are separated by commas.

    Args:
        option: name of the option, for the error message.
        text: numbers to parse.
        kind: int or float.

    Raises:
        ValueError: if the text is anything else.
    """
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        number = "a whole number" if kind is int else "a number"
        raise ValueError(f"{option} must be {number}, or several separated by commas: `{text}`") from None
