"""The figures of `bertline bench`, and their JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bertline._connection import Priority
from bertline.bench.load_generator import Arrivals, Load, Samples, Usage, measured_s

FORMAT = 1
"""Of the JSON; another number when a key changes its meaning or goes."""
_PER_MILLE = {"p50": 500, "p90": 900, "p95": 950, "p99": 990, "p99_9": 999}
NUM_BARS = 10
MAX_BUSY = 0.9
"""Share of the time that the event loop may work before it is the loop that is measured."""
MAX_LATE_S = 0.1
"""Calls of an open loop that are sent later than that were not sent as they were due."""


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Of answered calls. A percentile is the least of their latencies that such a share of them did not exceed."""

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
        """None of no values."""
        if not len(values):
            return None
        ordered = np.sort(values)
        percentiles = {name: float(ordered[-(-len(ordered) * share // 1000) - 1]) for name, share in _PER_MILLE.items()}
        return cls(mean=float(ordered.mean()), min=float(ordered[0]), max=float(ordered[-1]), **percentiles)


@dataclass(frozen=True)
class Bar:
    """Calls whose latency lay in a range, the upper end included."""

    from_s: float
    to_s: float
    num_calls: int


def histogram(values: Sequence[float], num_bars: int = NUM_BARS) -> list[Bar]:
    """Bars from the least value to the greatest, each wider than the one before by the same factor."""
    if not len(values):
        return []
    array = np.asarray(values)
    edges = np.geomspace(max(array.min(), 1e-9), max(array.max(), 1e-9), num_bars + 1)
    edges[0], edges[-1] = array.min(), array.max()
    counts = np.bincount(np.clip(np.searchsorted(edges, array, side="left") - 1, 0, num_bars - 1), minlength=num_bars)
    if edges[0] == edges[-1]:
        return [Bar(float(edges[0]), float(edges[-1]), len(array))]
    return [Bar(float(a), float(b), int(n)) for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)]


@dataclass(frozen=True)
class Medians:
    """Where the time of a call went, by the replies that tell; medians, in seconds, which need not add up."""

    tokenize_s: float
    """On the server, as all but the last."""
    queue_s: float
    inference_s: float
    rest_s: float
    """From sending to the reply, less these three: the network, gRPC at both ends, waiting for a core."""

    @classmethod
    def of(cls, samples: Samples) -> Medians | None:
        """None where no reply tells."""
        if not samples.tokenize_s:
            return None
        parts = (samples.tokenize_s, samples.queue_s, samples.inference_s, samples.rest_s)
        return cls(*(float(np.median(np.asarray(part))) for part in parts))


@dataclass(frozen=True)
class Status:
    """Calls that ended so."""

    status: str
    """`OK`, or the gRPC status."""
    num_calls: int
    message: str
    """The first; empty for OK."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One load and what came of it."""

    concurrency: int | None
    rate: float | None
    seconds: float
    """From the start to the end of the load (or Ctrl-C), or to the last reply where that came later."""
    interrupted: bool
    num_calls: int
    """Sent: answered, failed, or abandoned."""
    num_ok: int
    num_failed: int
    num_abandoned: int
    """Under way when Ctrl-C came."""
    num_unsent: int
    """Of an open loop: about how many were due, and not sent since the time was over or Ctrl-C came."""
    num_texts: int
    """Answered, as are the tokens and all that is per second."""
    num_tokens: int
    num_cut: int
    """Texts that the model could not read to their end."""
    num_timed: int
    """Replies with timings; a server's cache sends none."""
    calls_per_s: float
    texts_per_s: float
    tokens_per_s: float
    sent_bytes_per_s: float
    received_bytes_per_s: float
    latency_s: Latency | None
    """From when a call was due (open loop) or begun (closed loop) to its reply."""
    service_s: Latency | None
    """From when it was sent to its reply: the same in a closed loop."""
    max_late_s: float
    """The longest between when a call was due and when it was sent."""
    server_medians: Medians | None
    histogram: list[Bar]
    """Of `latency_s`."""
    statuses: list[Status]
    models: dict[str, int]
    """Calls answered by each NAME/VERSION."""
    client_cores: float
    """CPU time of this process for each second."""
    client_busy: float
    """Share of the time that its event loop had something to do."""
    warnings: list[str]
    """What makes the figures doubtful."""

    @classmethod
    def of(cls, load: Load, samples: Samples, usage: Usage, *, interrupted: bool) -> Run:
        """The figures of what was measured."""
        seconds = measured_s(load, samples, usage.seconds)
        per_s = 1 / seconds
        num_ok = samples.statuses["OK"]
        statuses = [
            Status(status, count, samples.messages.get(status, "")) for status, count in samples.statuses.most_common()
        ]
        latency_s = Latency.of(samples.latency_s)
        return cls(
            concurrency=load.concurrency,
            rate=load.rate,
            seconds=seconds,
            interrupted=interrupted,
            num_calls=samples.num_begun,
            num_ok=num_ok,
            num_failed=samples.num_failed,
            num_abandoned=samples.num_abandoned,
            num_unsent=samples.num_unsent,
            num_texts=samples.num_texts,
            num_tokens=samples.num_tokens,
            num_cut=samples.num_cut,
            num_timed=len(samples.tokenize_s),
            calls_per_s=num_ok * per_s,
            texts_per_s=samples.num_texts * per_s,
            tokens_per_s=samples.num_tokens * per_s,
            sent_bytes_per_s=samples.bytes_sent * per_s,
            received_bytes_per_s=samples.bytes_received * per_s,
            latency_s=latency_s,
            service_s=Latency.of(samples.service_s),
            max_late_s=samples.max_late_s,
            server_medians=Medians.of(samples),
            histogram=histogram(samples.latency_s),
            statuses=statuses,
            models=dict(samples.models),
            client_cores=usage.cpu_s / usage.seconds,
            client_busy=usage.busy_s / usage.seconds,
            warnings=list(_warnings(load, samples, usage)),
        )


def _warnings(load: Load, samples: Samples, usage: Usage) -> Iterator[str]:
    """What makes figures doubtful, and what to do about it."""
    busy, num_ok, num_timed = usage.busy_s / usage.seconds, samples.statuses["OK"], len(samples.tokenize_s)
    if busy > MAX_BUSY:
        yield (
            f"the client was the bottleneck: its event loop was busy {busy:.0%} of the time; put more texts into "
            "a call (--batch-size), or run several `bertline bench` at once"
        )
    if samples.num_unsent:
        yield (
            f"about {samples.num_unsent:,} calls that were due were never sent: the server, or the client, does not "
            f"keep up with --rate {load.rate:g} (at most {load.max_in_flight:,} are in flight, --max-in-flight)"
        )
    elif samples.max_late_s > MAX_LATE_S:
        yield f"calls were sent up to {samples.max_late_s:.2g} s after they were due, which is in their latency"
    if num_timed < num_ok:
        yield (
            f"{num_ok - num_timed:,} of {num_ok:,} replies carry no timings, as those out of a server's cache: "
            "give more different inputs (--input), or serve without --cache-bytes"
        )
    if len(samples.models) > 1:
        yield f"several versions answered: {', '.join(sorted(samples.models))}; name one with --model NAME/VERSION"


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that was asked for and found."""

    format: int = FORMAT
    started: str
    """ISO 8601, UTC."""
    target: str
    model: str
    """NAME/VERSION as the server gave it at the start."""
    task: str
    precision: str
    max_seq_length: int
    method: str
    """The RPC."""
    input_path: str | None
    """Null for the built-in texts."""
    num_inputs: int
    """Different ones that were sent in turn."""
    batch_size: int
    channels: int
    priority: Priority
    arrivals: Arrivals
    """Of open loops, as `max_in_flight` and `seed`."""
    max_in_flight: int
    seed: int
    duration_s: float | None
    """Of each run; or its `num_requests`."""
    num_requests: int | None
    warm_up_s: float
    timeout_s: float
    truncate: bool
    client: dict[str, str | int]
    """Versions of bertline, grpcio and Python, and the number of cores."""
    interrupted: bool
    """By Ctrl-C: later runs are missing, and the last may be short."""
    runs: list[Run]
    """One for each concurrency or rate, in the order asked for."""

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints: the fields of this class, of `Run` and of the others here, under their names.

        Times are seconds, null is what there was nothing to compute from.
        """
        return asdict(self)

    def exit_code(self, *, allow_failures: bool = False) -> int:
        """Of the command: 130 when Ctrl-C ended it, 1 when calls failed (or, if that is allowed, none was answered)."""
        if self.interrupted:
            return 130
        if any(not run.num_ok for run in self.runs):
            return 1
        return int(not allow_failures and any(run.num_failed or run.num_unsent for run in self.runs))
