"""Prometheus metrics of the queue, batches, models, the cache and refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serving.core import credentials
from serving.core.canary import Canary
from serving.core.errors import ERRORS, DeadlineTooShortError, QueueFullError, RefusedError, TooLargeError
from serving.core.models import Model, State
from serving.core.scheduler import BatchStats

MODEL_LABELS = ("model", "version", "task")
REJECTIONS = {QueueFullError: "queue_full", TooLargeError: "request_too_large", DeadlineTooShortError: "deadline"}
VERSION_LABELS = ("model", "version")
LOADED, FAILED = "loaded", "failed"
HIT, MISS = "hit", "miss"
CODEC, TOKENIZE = "codec", "tokenize"

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class ModelSeries(NamedTuple):
    """Series of one model version, updated by its calls and batches."""

    encode: Histogram
    queue: Histogram
    inference: Histogram
    decode: Histogram
    rows: Histogram
    batch_tokens: Histogram
    tokens: Counter
    padding: Counter


class Metrics:
    """All series of one server, in a separate registry. Thread-safe."""

    def __init__(self) -> None:
        disable_created_metrics()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry, buckets=SECONDS)
        self._wait = histogram(
            "bertline_wait_seconds", "Wait of a request for a thread that decodes or encodes it.", ("threads",)
        )
        for threads in (CODEC, TOKENIZE):
            self._wait.labels(threads)
        self._of_models = (
            histogram("bertline_encode_seconds", "Tokenizing a request and making its features.", MODEL_LABELS),
            histogram("bertline_queue_seconds", "Wait of a sequence for a worker.", MODEL_LABELS),
            histogram("bertline_inference_seconds", "Running a batch.", MODEL_LABELS),
            histogram("bertline_decode_seconds", "Turning model outputs into a reply.", MODEL_LABELS),
            histogram("bertline_batch_rows", "Sequences in a batch.", MODEL_LABELS, buckets=ROWS),
            histogram("bertline_batch_tokens", "Tokens of a batch, padding included.", MODEL_LABELS, buckets=TOKENS),
            counter("bertline_tokens_total", "Tokens computed, without padding.", MODEL_LABELS),
            counter("bertline_padding_tokens_total", "Padding tokens computed.", MODEL_LABELS),
        )
        """Metrics in the order of the fields of ModelSeries."""
        self._truncated = counter(
            "bertline_truncated_total", "Inputs truncated to the model's max_seq_length.", MODEL_LABELS
        )
        self._queue_sequences = gauge("bertline_queue_sequences", "Sequences in the queue.", MODEL_LABELS)
        self._queue_tokens = gauge("bertline_queue_tokens", "Tokens in the queue.", MODEL_LABELS)
        self._rejected = counter(
            "bertline_rejected_total", "Requests that the queue did not admit, by reason.", (*MODEL_LABELS, "reason")
        )
        self._cancelled = counter(
            "bertline_cancelled_total", "Sequences removed from the queue: cancelled or expired.", MODEL_LABELS
        )
        self._cache_requests = counter(
            "bertline_cache_requests_total", "Cache lookups, by hit or miss.", (*MODEL_LABELS, "result")
        )
        self._cache_evicted = counter("bertline_cache_evicted_total", "Replies evicted from the cache.")
        self._cache_bytes = gauge("bertline_cache_bytes", "Memory of cached replies.")
        self._cache_replies = gauge("bertline_cache_replies", "Cached replies.")
        self._info = Info("bertline_model", "Loaded models.", MODEL_LABELS, registry=self.registry)
        self._loads = counter("bertline_model_loads_total", "Attempts to load.", (*VERSION_LABELS, "result"))
        self._load_seconds = gauge(
            "bertline_model_load_seconds", "Duration of the last load, warm-up included.", VERSION_LABELS
        )
        self._scan_age = gauge(
            "bertline_repository_look_age_seconds", "Seconds since the last complete scan of the directory of models."
        )
        self._refused = counter("bertline_refused_total", "Calls refused before they were handled.", ("reason",))
        for error in ERRORS:
            if error.refusal:
                self._refused.labels(error.refusal)
        self._register(_reload_failures)
        self._model_series: dict[tuple[str, str, str], ModelSeries] = {}
        """Series by labels: looking up eight series by their labels would take 1% of a call."""

    def _series(self, model: Model) -> ModelSeries:
        labels = _labels(model)
        if not (series := self._model_series.get(labels)):
            series = self._model_series[labels] = ModelSeries._make(item.labels(*labels) for item in self._of_models)
        return series

    def _register(self, make_family: Callable[[], Metric]) -> None:
        """Register a function that each scrape calls, for series that come and go."""
        self.registry.register(_Collector(make_family))

    def collect_server(
        self,
        states: Callable[[], Mapping[tuple[str, str], State]],
        scan_age_s: Callable[[], float],
        serving: Callable[[], Mapping[str, bool]],
        queued_sequences: Callable[[Model], int],
        queued_tokens: Callable[[Model], int],
        num_dropped_lines: Callable[[], int],
        canary_problems: Callable[[], Mapping[Model, str]],
    ) -> None:
        """Register functions that return the state of the server; each scrape calls them.

        Args:
            states: (name, version) -> state, of all versions.
            scan_age_s: seconds since the last complete scan of the directory of models.
            serving: service -> whether its health status is SERVING.
            queued_sequences: number of sequences in the queue of a model.
            queued_tokens: number of tokens in the queue of a model.
            num_dropped_lines: number of log lines that could not be written.
            canary_problems: model -> why its canary fails; empty if it passes.
        """
        self._scan_age.set_function(scan_age_s)
        self._register(lambda: _state_family(states()))
        self._register(lambda: _health_family(serving()))
        self._register(lambda: _canary_family(canary_problems()))
        self._register(
            lambda: CounterMetricFamily(
                "bertline_log_lines_dropped", "Log lines that could not be written.", num_dropped_lines()
            )
        )
        self._queued_sequences, self._queued_tokens = queued_sequences, queued_tokens

    def collect_cache(self, num_bytes: Callable[[], int], num_replies: Callable[[], int]) -> None:
        """Register the functions that return the size of the cache, in bytes and in replies."""
        self._cache_bytes.set_function(num_bytes)
        self._cache_replies.set_function(num_replies)

    def version_seen(self, name: str, version: str) -> None:
        """Create the load counters of a version that is about to be loaded."""
        for result in (LOADED, FAILED):
            self._loads.labels(name, version, result)

    def model_loaded(self, model: Model, seconds: float) -> None:
        """Count a loaded model and create all its series."""
        labels = _labels(model)
        self._loads.labels(*labels[:2], LOADED).inc()
        self._load_seconds.labels(*labels[:2]).set(seconds)
        self._series(model)
        for counter in (self._truncated, self._cancelled):
            counter.labels(*labels)
        for reason in REJECTIONS.values():
            self._rejected.labels(*labels, reason)
        for result in (HIT, MISS):
            self._cache_requests.labels(*labels, result)
        self._queue_sequences.labels(*labels).set_function(partial(self._queued_sequences, model))
        self._queue_tokens.labels(*labels).set_function(partial(self._queued_tokens, model))
        self._info.labels(*labels).info(
            {"precision": model.manifest.precision, "digest": model.digest, "engine": model.execution.engine}
        )

    def model_failed(self, name: str, version: str) -> None:
        """Count a version that could not be loaded."""
        self._loads.labels(name, version, FAILED).inc()

    def model_unloaded(self, model: Model) -> None:
        """Remove the gauges of a model. Keep its counters: running requests still update them, and a counter that
        starts again at 0 would look like a restart."""
        labels = _labels(model)
        self._queue_sequences.remove(*labels)
        self._queue_tokens.remove(*labels)
        self._info.remove(*labels)
        self._load_seconds.remove(*labels[:2])

    def refused(self, reason: str) -> None:
        """Count a refused call; `reason` is that of a ServingError."""
        self._refused.labels(reason).inc()

    def waited(self, threads: str, seconds: float) -> None:
        """Observe the wait of a request for a thread of a pool, CODEC or TOKENIZE."""
        self._wait.labels(threads).observe(seconds)

    def encoded(self, model: Model, seconds: float) -> None:
        """Observe the time to turn a request into features."""
        self._series(model).encode.observe(seconds)

    def truncated(self, model: Model, count: int) -> None:
        """Count truncated inputs."""
        self._truncated.labels(*_labels(model)).inc(count)

    def decoded(self, model: Model, seconds: float) -> None:
        """Observe the time to turn outputs into a reply."""
        self._series(model).decode.observe(seconds)

    def job_refused(self, model: Model | Canary, error: RefusedError) -> None:
        """Count a request that the queue did not admit, by its error, one of REJECTIONS."""
        if isinstance(model, Model):
            self._rejected.labels(*_labels(model), REJECTIONS[type(error)]).inc()

    def cache_looked_up(self, model: Model, *, hit: bool) -> None:
        """Count a cache lookup; a miss is counted after the reply is computed."""
        self._cache_requests.labels(*_labels(model), HIT if hit else MISS).inc()

    def cache_evicted(self, count: int) -> None:
        """Count evicted replies."""
        self._cache_evicted.inc(count)

    def batch_done(self, model: Model | Canary, batch: BatchStats) -> None:
        """Observe a computed batch, except those of canaries."""
        if not isinstance(model, Model):
            return
        series = self._series(model)
        for wait_s in batch.queue_s:
            series.queue.observe(wait_s)
        series.inference.observe(batch.inference_s)
        series.rows.observe(batch.rows)
        series.batch_tokens.observe(batch.padded_tokens)
        series.tokens.inc(batch.num_tokens)
        series.padding.inc(batch.padded_tokens - batch.num_tokens)

    def sequences_dropped(self, model: Model | Canary, count: int) -> None:
        """Count sequences that were cancelled or expired in the queue."""
        if isinstance(model, Model):
            self._cancelled.labels(*_labels(model)).inc(count)


class _Collector(Collector):
    """Collector that calls a function at each scrape."""

    def __init__(self, make_family: Callable[[], Metric]) -> None:
        self._make_family = make_family

    def collect(self) -> Iterator[Metric]:
        yield self._make_family()


def _state_family(states: Mapping[tuple[str, str], State]) -> GaugeMetricFamily:
    """Return the state of each version. No removed version stays behind."""
    family = GaugeMetricFamily(
        "bertline_model_state", "1 for the current state of a version.", labels=(*VERSION_LABELS, "state")
    )
    for key, current in states.items():
        for state in State:
            family.add_metric((*key, state.value), state is current)
    return family


def _health_family(serving: Mapping[str, bool]) -> GaugeMetricFamily:
    """Return the health of each service except the one without a name: Prometheus treats an empty label as missing."""
    family = GaugeMetricFamily("bertline_serving", "1 if the health status is SERVING.", labels=("service",))
    for service, serves in serving.items():
        if service:
            family.add_metric((service,), serves)
    return family


def _canary_family(problems: Mapping[Model, str]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(
        "bertline_model_healthy", "1 if the last canaries of a loaded version passed.", labels=VERSION_LABELS
    )
    for model, problem in problems.items():
        family.add_metric(_labels(model)[:2], not problem)
    return family


def _reload_failures() -> GaugeMetricFamily:
    """Return the reload errors of watched files, by kind."""
    family = GaugeMetricFamily(
        "bertline_reload_failed",
        "1 if changed files cannot be read, so that the content read before stays in use.",
        labels=("what",),
    )
    for kind, is_failing in credentials.failing().items():
        family.add_metric((kind,), is_failing)
    return family


def _labels(model: Model) -> tuple[str, str, str]:
    return model.manifest.name, model.manifest.version, model.manifest.task
