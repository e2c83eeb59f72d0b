"""Report of `bertline bench`, and its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bertline._connection import Priority
from bertline.bench.load_generator import Arrivals, CallResults, LoadProfile, ProcessUsage, measured_s

FORMAT = 1
"""Version of the JSON. It changes if a key changes its meaning or is removed."""
_PER_MILLE = {"p50": 500, "p90": 900, "p95": 950, "p99": 990, "p99_9": 999}
NUM_BARS = 10
MAX_BUSY = 0.9
"""Busy fraction of the event loop above which the client is the bottleneck."""
MAX_LATE_S = 0.1
"""Delay in seconds above which calls of an open loop count as late."""


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Latency of answered calls, in seconds. A percentile is the smallest latency that this fraction did not exceed."""

    mean: float
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    p99_9: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Latency | None:
        """Return the latency of some calls; None for no calls."""
        if not len(values):
            return None
        ordered = np.sort(values)
        percentiles = {
            name: float(ordered[-(-len(ordered) * per_mille // 1000) - 1]) for name, per_mille in _PER_MILLE.items()
        }
        return cls(mean=float(ordered.mean()), min=float(ordered[0]), max=float(ordered[-1]), **percentiles)


@dataclass(frozen=True)
class HistogramBar:
    """Number of calls in a range of latencies; the upper end belongs to it."""

    from_s: float
    to_s: float
    num_calls: int


def histogram(values: Sequence[float], num_bars: int = NUM_BARS) -> list[HistogramBar]:
    """Return a histogram from the least to the greatest value, with logarithmic bars."""
    if not len(values):
        return []
    array = np.asarray(values)
    edges = np.geomspace(max(array.min(), 1e-9), max(array.max(), 1e-9), num_bars + 1)
    edges[0], edges[-1] = array.min(), array.max()
    counts = np.bincount(np.clip(np.searchsorted(edges, array, side="left") - 1, 0, num_bars - 1), minlength=num_bars)
    if edges[0] == edges[-1]:
        return [HistogramBar(float(edges[0]), float(edges[-1]), len(array))]
    return [HistogramBar(float(a), float(b), int(n)) for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)]


@dataclass(frozen=True)
class TimingMedians:
    """Medians of a call's timings, in seconds, over replies that carry timings. They need not add up."""

    tokenize_s: float
    """Time at the server, as are queue and inference."""
    queue_s: float
    inference_s: float
    rest_s: float
    """Time from sending to the reply, minus the three above: network, gRPC at both ends, wait for a core."""

    @classmethod
    def of(cls, results: CallResults) -> TimingMedians | None:
        """Return the medians; None if no reply carries timings."""
        if not results.tokenize_s:
            return None
        parts = (results.tokenize_s, results.queue_s, results.inference_s, results.rest_s)
        return cls(*(float(np.median(np.asarray(part))) for part in parts))


@dataclass(frozen=True)
class StatusCount:
    """Number of calls that ended with a status."""

    status: str
    """`OK` or another gRPC status."""
    num_calls: int
    message: str
    """Message of the first such call; empty for OK."""


@dataclass(frozen=True, kw_only=True)
class BenchRun:
    """Figures of one run."""

    concurrency: int | None
    rate: float | None
    seconds: float
    """Duration: until the end of the load or Ctrl-C, or until the last reply if that came later."""
    interrupted: bool
    num_calls: int
    """Calls that were sent: answered, failed or abandoned."""
    num_ok: int
    num_failed: int
    num_abandoned: int
    """Calls in flight at Ctrl-C."""
    num_unsent: int
    """Open loop: estimated number of calls that were due, but not sent before the end."""
    num_texts: int
    """Texts of answered calls. Tokens and rates are of answered calls, too."""
    num_tokens: int
    num_cut: int
    """Texts that were truncated."""
    num_timed: int
    """Replies with timings. Replies from the server's cache have none."""
    calls_per_s: float
    texts_per_s: float
    tokens_per_s: float
    sent_bytes_per_s: float
    received_bytes_per_s: float
    latency_s: Latency | None
    """Time from when a call was due (open loop) or sent (closed loop) to its reply."""
    service_s: Latency | None
    """Time from sending to the reply. In a closed loop, this equals `latency_s`."""
    max_late_s: float
    """Longest delay from when a call was due to when it was sent."""
    server_medians: TimingMedians | None
    histogram: list[HistogramBar]
    """Histogram of `latency_s`."""
    statuses: list[StatusCount]
    models: dict[str, int]
    """Answered calls by NAME/VERSION."""
    client_cores: float
    """CPU seconds of this process per second."""
    client_busy: float
    """Fraction of the time in which its event loop was busy."""
    warnings: list[str]
    """Reasons why the figures may be wrong."""

    @classmethod
    def of(cls, profile: LoadProfile, results: CallResults, usage: ProcessUsage, *, interrupted: bool) -> BenchRun:
        """Return the figures of a run."""
        seconds = measured_s(profile, results, usage.seconds)
        per_s = 1 / seconds
        num_ok = results.statuses["OK"]
        statuses = [
            StatusCount(status, count, results.messages.get(status, ""))
            for status, count in results.statuses.most_common()
        ]
        latency_s = Latency.of(results.latency_s)
        return cls(
            concurrency=profile.concurrency,
            rate=profile.rate,
            seconds=seconds,
            interrupted=interrupted,
            num_calls=results.num_begun,
            num_ok=num_ok,
            num_failed=results.num_failed,
            num_abandoned=results.num_abandoned,
            num_unsent=results.num_unsent,
            num_texts=results.num_texts,
            num_tokens=results.num_tokens,
            num_cut=results.num_truncated,
            num_timed=len(results.tokenize_s),
            calls_per_s=num_ok * per_s,
            texts_per_s=results.num_texts * per_s,
            tokens_per_s=results.num_tokens * per_s,
            sent_bytes_per_s=results.bytes_sent * per_s,
            received_bytes_per_s=results.bytes_received * per_s,
            latency_s=latency_s,
            service_s=Latency.of(results.service_s),
            max_late_s=results.max_late_s,
            server_medians=TimingMedians.of(results),
            histogram=histogram(results.latency_s),
            statuses=statuses,
            models=dict(results.models),
            client_cores=usage.cpu_s / usage.seconds,
            client_busy=usage.busy_s / usage.seconds,
            warnings=list(_warnings(profile, results, usage)),
        )


def _warnings(profile: LoadProfile, results: CallResults, usage: ProcessUsage) -> Iterator[str]:
    """Yield reasons why the figures may be wrong, and what to do."""
    busy, num_ok, num_timed = usage.busy_s / usage.seconds, results.statuses["OK"], len(results.tokenize_s)
    if busy > MAX_BUSY:
        yield (
            f"the client was the bottleneck: its event loop was busy {busy:.0%} of the time; put more texts into "
            "each call (--batch-size), or run several `bertline bench` at the same time"
        )
    if results.num_unsent:
        yield (
            f"about {results.num_unsent:,} calls were due but never sent: the server or the client does not "
            f"keep up with --rate {profile.rate:g} (at most {profile.max_in_flight:,} are in flight, --max-in-flight)"
        )
    elif results.max_late_s > MAX_LATE_S:
        yield f"calls were sent up to {results.max_late_s:.2g} s late; their latency includes this"
    if num_timed < num_ok:
        yield (
            f"{num_ok - num_timed:,} of {num_ok:,} replies carry no timings, as replies from the server's cache: "
            "give more different inputs (--input), or serve without --cache-bytes"
        )
    if len(results.models) > 1:
        yield f"several versions answered: {', '.join(sorted(results.models))}; choose one with --model NAME/VERSION"


@dataclass(frozen=True, kw_only=True)
class Report:
    """Settings and results of a load test."""

    format: int = FORMAT
    started: str
    """Start time in UTC, ISO 8601."""
    target: str
    model: str
    """NAME/VERSION of the server at the start."""
    task: str
    precision: str
    max_seq_length: int
    method: str
    """Name of the RPC."""
    input_path: str | None
    """Null for the built-in texts."""
    num_inputs: int
    """Number of different inputs, sent in turn."""
    batch_size: int
    channels: int
    priority: Priority
    arrivals: Arrivals
    """Open loop only, like `max_in_flight` and `seed`."""
    max_in_flight: int
    seed: int
    duration_s: float | None
    """Duration of each run; null if `num_requests` is set."""
    num_requests: int | None
    warm_up_s: float
    timeout_s: float
    truncate: bool
    client: dict[str, str | int]
    """Versions of bertline, grpcio and Python, and the number of cores."""
    interrupted: bool
    """True after Ctrl-C: later runs are missing, and the last may be short."""
    runs: list[BenchRun]
    """Results of each concurrency or rate, in their order."""

    def to_dict(self) -> dict[str, Any]:
        """Return what `--json` prints: the fields of this class and of its parts, by name.

        Times are in seconds. null means that no call gave a value.
        """
        return asdict(self)

    def exit_code(self, *, allow_failures: bool = False) -> int:
        """Return the exit code: 130 after Ctrl-C, 1 if calls failed, else 0.

        Args:
            allow_failures: return 1 only if a run has no answered call.
        """
        if self.interrupted:
            return 130
        if any(not run.num_ok for run in self.runs):
            return 1
        return int(not allow_failures and any(run.num_failed or run.num_unsent for run in self.runs))
