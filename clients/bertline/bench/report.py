"""Figures of `bertline bench`: a table with a line for each run, or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bertline.bench.load import Load, Measurements

_PER_MILLE = {"p50": 500, "p90": 900, "p95": 950, "p99": 990, "p99_9": 999}
MAX_BUSY = 0.9
"""Busy fraction of the event loop above which the client is the bottleneck."""
MAX_LATE_S = 0.1
"""Delay in seconds above which calls of an open loop count as late."""
_ROW = "{:>9} {:>7} {:>8} {:>6} {:>6} {:>6} {:>6} {:>6} {:>9} {:>6}"


def latency(values: Sequence[float]) -> dict[str, float] | None:
    """Return mean, extremes and percentiles of the latencies of calls, in seconds; None for no calls.

    A percentile is the smallest latency that this fraction of the calls did not exceed.
    """
    if not len(values):
        return None
    ordered = np.sort(values)
    percentiles = {name: ordered[-(-len(ordered) * per_mille // 1000) - 1] for name, per_mille in _PER_MILLE.items()}
    found = {"mean": ordered.mean(), "min": ordered[0], **percentiles, "max": ordered[-1]}
    return {name: float(value) for name, value in found.items()}


class Run:
    """Figures of one run. Texts, tokens and rates are of answered calls.

    Args:
        load: load of the run.
        measured: its measurements.
        batch_size: number of texts in each call.
    """

    def __init__(self, load: Load, measured: Measurements, batch_size: int) -> None:
        self.concurrency = None if load.rate else load.concurrency
        self.rate = load.rate
        self.seconds = measured.seconds(load)
        self.num_calls = measured.num_sent
        """Calls that were sent. Those in flight at Ctrl-C neither succeeded nor failed."""
        self.num_ok = measured.statuses["OK"]
        self.num_failed = measured.statuses.total() - self.num_ok
        self.num_unsent = measured.num_unsent
        self.num_texts = self.num_ok * batch_size
        self.num_tokens = measured.num_tokens
        self.num_truncated = measured.num_truncated
        self.calls_per_s = self.num_ok / self.seconds
        self.texts_per_s = self.num_texts / self.seconds
        self.tokens_per_s = self.num_tokens / self.seconds
        self.latency_s = latency(measured.latency_s)
        self.max_late_s = measured.max_late_s
        self.queue_s = float(np.median(measured.queue_s)) if measured.queue_s else None
        """Median of the server's timings, as is inference_s; None if no reply has timings."""
        self.inference_s = float(np.median(measured.inference_s)) if measured.inference_s else None
        self.statuses = dict(+measured.statuses)
        self.messages = measured.messages
        self.models = dict(measured.models)
        self.client_busy = measured.busy
        self.warnings = list(_warnings(load, measured))

    def row(self) -> str:
        """Return the line of the table."""
        found = self.latency_s or {}
        seconds = (*map(found.get, ("p50", "p90", "p99", "max")), self.queue_s, self.inference_s)
        first = self.concurrency if self.rate is None else f"{self.rate:g}"
        counts = map(_count, (self.texts_per_s, self.tokens_per_s))
        return _ROW.format(first, *counts, *map(_ms, seconds), self.num_failed + self.num_unsent)

    def remarks(self) -> Iterator[str]:
        """Yield failures and warnings."""
        name = f"{self.concurrency} in flight" if self.rate is None else f"{self.rate:g} due/s"
        for status, message in self.messages.items():
            failed = f"{self.statuses[status]:,} of {self.num_calls:,} calls failed with {status}"
            yield f"{name}: {failed}, the first: {message[:300]}"
        if self.num_truncated:
            texts = f"{self.num_truncated:,} of {self.num_texts:,} texts"
            yield f"{name}: {texts} were too long for the model and truncated"
        yield from (f"{name}: warning: {warning}" for warning in self.warnings)


def header(load: Load) -> str:
    """Return the titles of the table."""
    first = "due/s" if load.rate else "in flight"
    return _ROW.format(first, "texts/s", "tokens/s", "p50 ms", "p90", "p99", "max", "queue", "inference", "failed")


def _warnings(load: Load, measured: Measurements) -> Iterator[str]:
    """Yield reasons why the figures may be wrong, and what to do."""
    num_ok, num_timed = measured.statuses["OK"], len(measured.queue_s)
    if measured.busy > MAX_BUSY:
        yield (
            f"the client was the bottleneck: its event loop was busy {measured.busy:.0%} of the time; put more texts "
            "into each call (--batch-size), or run several `bertline bench` at the same time"
        )
    if measured.num_unsent:
        yield (
            f"about {measured.num_unsent:,} calls were due but never sent: the server or the client does not "
            f"keep up with --rate {load.rate:g} (at most {load.max_in_flight:,} are in flight, --max-in-flight)"
        )
    elif measured.max_late_s > MAX_LATE_S:
        yield f"calls were sent up to {measured.max_late_s:.2g} s late; their latency includes this"
    if num_timed < num_ok:
        yield (
            f"{num_ok - num_timed:,} of {num_ok:,} replies carry no timings, as replies from the server's cache: "
            "give more different inputs (--input), or serve without --cache-bytes"
        )
    if len(measured.models) > 1:
        yield f"several versions answered: {', '.join(sorted(measured.models))}; choose one with --model NAME/VERSION"


def _ms(seconds: float | None) -> str:
    """Format seconds as milliseconds with three digits."""
    if seconds is None:
        return ""
    value = seconds * 1000
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
