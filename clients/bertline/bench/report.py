"""Runs of `bertline bench`: their load, what they measure, and their figures as a line of a table or JSON."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count, islice, repeat
from typing import Any, Literal

import numpy as np

Arrivals = Literal["poisson", "constant"]
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
MAX_BUSY = 0.9
"""Busy fraction of the event loop above which the client is the bottleneck."""
MAX_LATE_S = 0.1
"""Delay in seconds above which calls of an open loop count as late."""
_ROW = "{:>9} {:>7} {:>8} {:>6} {:>6} {:>6} {:>6} {:>6} {:>9} {:>6}"


@dataclass(frozen=True, kw_only=True)
class Load:
    """Schedule of the calls of a run: by `concurrency` or at a `rate`, until `duration_s` or `num_calls`."""

    concurrency: int = 8
    """Calls in flight: the next one starts when one has ended (closed loop)."""
    rate: float | None = None
    """Calls that are due per second, even if earlier ones have not ended (open loop). Replaces `concurrency`."""
    arrivals: Arrivals = "poisson"
    """Gaps between calls with `rate`: random, as of many independent callers, or even."""
    max_in_flight: int = 1000
    """Maximum number of calls in flight with `rate`. Later calls wait in the client, and their wait counts."""
    duration_s: float | None = 10.0
    num_calls: int | None = None
    timeout_s: float | None = 30.0

    def due_times(self, started: float) -> Iterator[float]:
        """Yield the times at which the calls of an open loop are due, the same in each run; the first one at once."""
        assert self.rate
        draw = random.Random(0).expovariate
        gaps = (draw(self.rate) for _ in count()) if self.arrivals == "poisson" else repeat(1 / self.rate)
        return islice(accumulate(gaps, initial=started), self.num_calls)


def latency(values: Sequence[float]) -> dict[str, float] | None:
    """Return mean, extremes and percentiles of the latencies of calls, in seconds; None for no calls.

    A percentile is the smallest latency that this fraction of the calls did not exceed.
    """
    if not len(values):
        return None
    percentiles = np.quantile(values, list(_QUANTILES.values()), method="inverted_cdf")
    found = {"mean": np.mean(values), "min": min(values), **dict(zip(_QUANTILES, percentiles, strict=True))}
    return {name: float(value) for name, value in (found | {"max": max(values)}).items()}


@dataclass
class Run:
    """Measurements of one run. Arrays hold one number per answered call."""

    load: Load
    batch_size: int = 1
    """Number of texts in each call."""
    latency_s: array[float] = field(default_factory=lambda: array("d"))
    """Seconds from when a call was due (open loop) or sent (closed loop) to its reply."""
    queue_s: array[float] = field(default_factory=lambda: array("f"))
    """Server timings of the replies that carry them."""
    inference_s: array[float] = field(default_factory=lambda: array("f"))
    num_sent: int = 0
    """Calls that were sent. Those in flight at Ctrl-C neither succeeded nor failed."""
    num_unsent: int = 0
    """Estimated number of calls that were due, but not sent before the run ended."""
    num_tokens: int = 0
    num_truncated: int = 0
    """Texts that were truncated."""
    statuses: Counter[str] = field(default_factory=Counter)
    """Calls by gRPC status."""
    messages: dict[str, str] = field(default_factory=dict)
    """First message of each status except OK."""
    models: Counter[str] = field(default_factory=Counter)
    """Answered calls by model and version."""
    last_sent_s: float = 0.0
    """Time of the last call, in seconds since the start of the run, as is that of the last reply."""
    last_reply_s: float = 0.0
    max_late_s: float = 0.0
    """Longest delay from when a call was due to when it was sent."""
    elapsed_s: float = 0.0
    """Seconds until all calls had ended."""
    busy: float = 0.0
    """Fraction of the time in which the client's event loop computed."""

    def add_failure(self, status: str, message: str) -> None:
        """Count a call that failed."""
        self.statuses[status] += 1
        self.messages.setdefault(status, " ".join(message.split()))

    def add_reply(self, reply: Any, latency_s: float) -> None:
        """Count a call that was answered."""
        self.statuses["OK"] += 1
        self.latency_s.append(latency_s)
        self.num_tokens += sum(reply.num_tokens)
        self.num_truncated += sum(map(bool, reply.num_truncated))
        self.models[f"{reply.model.name}/{reply.model.version}"] += 1
        if reply.HasField("timings"):
            self.queue_s.append(reply.timings.queue_s)
            self.inference_s.append(reply.timings.inference_s)

    @property
    def seconds(self) -> float:
        """Duration of the run: until the end of its load, or until the last reply if that came later.

        Calls that fail after that do not extend it.
        """
        ended_s = self.elapsed_s if self.load.duration_s is None else self.load.duration_s
        if self.load.duration_s is None and self.num_sent == self.load.num_calls:
            ended_s = self.last_sent_s
        return max(self.last_reply_s, min(ended_s, self.elapsed_s))

    @property
    def num_ok(self) -> int:
        """Number of answered calls."""
        return self.statuses["OK"]

    @property
    def num_failed(self) -> int:
        """Number of calls that failed."""
        return self.statuses.total() - self.num_ok

    def figures(self) -> dict[str, Any]:
        """Return the figures for JSON. Texts, tokens and rates are of answered calls."""
        num_texts, seconds = self.num_ok * self.batch_size, self.seconds
        return {
            "concurrency": None if self.load.rate else self.load.concurrency,
            "rate": self.load.rate,
            "seconds": seconds,
            "num_calls": self.num_sent,
            "num_ok": self.num_ok,
            "num_failed": self.num_failed,
            "num_unsent": self.num_unsent,
            "num_texts": num_texts,
            "num_tokens": self.num_tokens,
            "num_truncated": self.num_truncated,
            "calls_per_s": self.num_ok / seconds,
            "texts_per_s": num_texts / seconds,
            "tokens_per_s": self.num_tokens / seconds,
            "latency_s": latency(self.latency_s),
            "max_late_s": self.max_late_s,
            "queue_s": float(np.median(self.queue_s)) if self.queue_s else None,
            "inference_s": float(np.median(self.inference_s)) if self.inference_s else None,
            "statuses": dict(+self.statuses),
            "messages": self.messages,
            "models": dict(self.models),
            "client_busy": self.busy,
            "warnings": list(self.warnings()),
        }

    def row(self) -> str:
        """Return the line of the table."""
        found = self.figures()
        percentiles = map((found["latency_s"] or {}).get, ("p50", "p90", "p99", "max"))
        times = map(_ms, (*percentiles, found["queue_s"], found["inference_s"]))
        rates = (
            f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}" for rate in (found["texts_per_s"], found["tokens_per_s"])
        )
        first = f"{self.load.rate:g}" if self.load.rate else self.load.concurrency
        return _ROW.format(first, *rates, *times, self.num_failed + self.num_unsent)

    def remarks(self) -> Iterator[str]:
        """Yield failures and warnings."""
        name = f"{self.load.rate:g} due/s" if self.load.rate else f"{self.load.concurrency} in flight"
        for status, message in self.messages.items():
            failed = f"{self.statuses[status]:,} of {self.num_sent:,} calls failed with {status}"
            yield f"{name}: {failed}, the first: {message[:300]}"
        if self.num_truncated:
            texts = f"{self.num_truncated:,} of {self.num_ok * self.batch_size:,} texts"
            yield f"{name}: {texts} were too long for the model and truncated"
        yield from (f"{name}: warning: {warning}" for warning in self.warnings())

    def warnings(self) -> Iterator[str]:
        """Yield reasons why the figures may be wrong, and what to do."""
        if self.busy > MAX_BUSY:
            yield (
                f"the client was the bottleneck: its event loop was busy {self.busy:.0%} of the time; put more texts "
                "into each call (--batch-size), or run several `bertline bench` at the same time"
            )
        if self.num_unsent:
            yield (
                f"about {self.num_unsent:,} calls were due but never sent: the server or the client does not keep up "
                f"with --rate {self.load.rate:g} (at most {self.load.max_in_flight:,} are in flight, --max-in-flight)"
            )
        elif self.max_late_s > MAX_LATE_S:
            yield f"calls were sent up to {self.max_late_s:.2g} s late; their latency includes this"
        if num_untimed := self.num_ok - len(self.queue_s):
            yield (
                f"{num_untimed:,} of {self.num_ok:,} replies carry no timings, as replies from the server's cache: "
                "give more different inputs (--input), or serve without --cache-bytes"
            )
        if len(self.models) > 1:
            yield f"several versions answered: {', '.join(sorted(self.models))}; choose one with --model NAME/VERSION"


def header(load: Load) -> str:
    """Return the titles of the table."""
    first = "due/s" if load.rate else "in flight"
    return _ROW.format(first, "texts/s", "tokens/s", "p50 ms", "p90", "p99", "max", "queue", "inference", "failed")


def _ms(seconds: float | None) -> str:
    """Format seconds as milliseconds with three digits."""
    if seconds is None:
        return ""
    value = seconds * 1000
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
