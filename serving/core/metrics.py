"""Prometheus metrics: RPCs by the names that gRPC dashboards know, and what queue, batches and models do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from serving.core import file_watcher as watched
from serving.core.errors import REFUSAL_REASONS, DeadlineTooShortError, QueueFullError, TooLargeError
from serving.core.models import Model, State
from serving.core.scheduler import Batch
from tasks.model_directory import MODEL_FILE

MODEL_LABELS = ("model", "version", "task")
REJECTIONS = {QueueFullError: "queue_full", TooLargeError: "request_too_large", DeadlineTooShortError: "deadline"}
VERSION_LABELS = ("model", "version")
LOADED, FAILED = "loaded", "failed"
HIT, MISS = "hit", "miss"
CODEC, TOKENIZE = "codec", "tokenize"
REFUSALS = tuple(REFUSAL_REASONS.values())

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True, slots=True)
class OfModel:
    """The series of one version of a model that its calls and batches change."""

    encode: Histogram
    queue: Histogram
    inference: Histogram
    decode: Histogram
    rows: Histogram
    batch_tokens: Histogram
    tokens: Counter
    padding: Counter


class Metrics:
    """All series of one server, in a registry of their own. May be called from any thread."""

    def __init__(self) -> None:
        disable_created_metrics()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        self._wait = histogram(
            "bertline_wait_seconds",
            "A request's wait for a thread that reads or answers it.",
            ("threads",),
            buckets=SECONDS,
        )
        for threads in (CODEC, TOKENIZE):
            self._wait.labels(threads)
        self._encode = histogram(
            "bertline_encode_seconds", "Turning a request into features.", MODEL_LABELS, buckets=SECONDS
        )
        self._queue = histogram(
            "bertline_queue_seconds", "A sequence's wait for a worker.", MODEL_LABELS, buckets=SECONDS
        )
        self._decode = histogram(
            "bertline_decode_seconds", "Turning a request's outputs into a reply.", MODEL_LABELS, buckets=SECONDS
        )
        self._inference = histogram("bertline_inference_seconds", "Running a batch.", MODEL_LABELS, buckets=SECONDS)
        self._rows = histogram("bertline_batch_rows", "Sequences in a batch.", MODEL_LABELS, buckets=ROWS)
        self._batch_tokens = histogram(
            "bertline_batch_tokens", "Tokens of a batch, padding included.", MODEL_LABELS, buckets=TOKENS
        )
        self._tokens = counter("bertline_tokens_total", "Tokens computed, without padding.", MODEL_LABELS)
        self._padding = counter("bertline_padding_tokens_total", "Padding computed, in tokens.", MODEL_LABELS)
        self._truncated = counter("bertline_truncated_total", "Inputs cut to what the model reads.", MODEL_LABELS)
        self._queue_sequences = Gauge(
            "bertline_queue_sequences", "Sequences that wait for a worker.", MODEL_LABELS, registry=self.registry
        )
        self._queue_tokens = Gauge(
            "bertline_queue_tokens", "Tokens that wait for a worker.", MODEL_LABELS, registry=self.registry
        )
        self._rejected = counter(
            "bertline_rejected_total", "Requests refused for want of room in the queue.", (*MODEL_LABELS, "reason")
        )
        self._cancelled = counter(
            "bertline_cancelled_total", "Sequences that left the queue since nobody waits for them.", MODEL_LABELS
        )
        self._cache_requests = counter(
            "bertline_cache_requests_total", "Requests by whether their reply was known.", (*MODEL_LABELS, "result")
        )
        self._cache_evicted = counter("bertline_cache_evicted_total", "Replies that had to make room for others.")
        self._cache_bytes = Gauge("bertline_cache_bytes", "Memory of cached replies.", registry=self.registry)
        self._cache_replies = Gauge("bertline_cache_replies", "Cached replies.", registry=self.registry)
        self._info = Info("bertline_model", "What is loaded.", MODEL_LABELS, registry=self.registry)
        self._loads = counter("bertline_model_loads_total", "Attempts to load.", (*VERSION_LABELS, "result"))
        self._load_seconds = Gauge(
            "bertline_model_load_seconds",
            "How long loading and warming up took, the last time.",
            VERSION_LABELS,
            registry=self.registry,
        )
        self._look_age = Gauge(
            "bertline_repository_look_age_seconds",
            "Seconds since the last look that saw the whole directory of models.",
            registry=self.registry,
        )
        self._refused = counter("bertline_refused_total", "Calls refused before they were handled.", ("reason",))
        self.registry.register(_Reloads())
        for reason in REFUSALS:
            self._refused.labels(reason)
        self._of_models: dict[tuple[str, str, str], OfModel] = {}
        """By labels: looking for eight series takes 1% of a call."""

    def _of(self, model: Model) -> OfModel:
        labels = _labels(model)
        if not (found := self._of_models.get(labels)):
            found = self._of_models[labels] = OfModel(
                encode=self._encode.labels(*labels),
                queue=self._queue.labels(*labels),
                inference=self._inference.labels(*labels),
                decode=self._decode.labels(*labels),
                rows=self._rows.labels(*labels),
                batch_tokens=self._batch_tokens.labels(*labels),
                tokens=self._tokens.labels(*labels),
                padding=self._padding.labels(*labels),
            )
        return found

    def watch(
        self,
        states: Callable[[], Mapping[tuple[str, str], State]],
        look_age_s: Callable[[], float],
        serving: Callable[[], Mapping[str, bool]],
        queued_sequences: Callable[[Model], int],
        queued_tokens: Callable[[Model], int],
    ) -> None:
        """Ask at each scrape.

        Args:
            states: of all versions, by name and version.
            look_age_s: seconds since the directory of models was last seen whole.
            serving: what health checks are told, by service.
            queued_sequences: sequences that wait for a model.
            queued_tokens: their tokens.
        """
        self._look_age.set_function(look_age_s)
        self.registry.register(_States(states))
        self.registry.register(_Health(serving))
        self._queued_sequences, self._queued_tokens = queued_sequences, queued_tokens

    def watch_log(self, num_dropped: Callable[[], int]) -> None:
        """Ask at each scrape how many lines of the log were dropped."""
        self.registry.register(_Dropped(num_dropped))

    def watch_cache(self, num_bytes: Callable[[], int], num_replies: Callable[[], int]) -> None:
        """Ask at each scrape."""
        self._cache_bytes.set_function(num_bytes)
        self._cache_replies.set_function(num_replies)

    def version_seen(self, name: str, version: str) -> None:
        """A version is about to be loaded."""
        for result in (LOADED, FAILED):
            self._loads.labels(name, version, result)

    def model_loaded(self, model: Model, seconds: float) -> None:
        """A model is ready: all its series exist from now on."""
        labels = _labels(model)
        self._loads.labels(*labels[:2], LOADED).inc()
        self._load_seconds.labels(*labels[:2]).set(seconds)
        self._of(model)
        for counter in (self._truncated, self._cancelled):
            counter.labels(*labels)
        for reason in REJECTIONS.values():
            self._rejected.labels(*labels, reason)
        for result in (HIT, MISS):
            self._cache_requests.labels(*labels, result)
        self._queue_sequences.labels(*labels).set_function(partial(self._queued_sequences, model))
        self._queue_tokens.labels(*labels).set_function(partial(self._queued_tokens, model))
        self._info.labels(*labels).info(
            {"precision": model.manifest.precision, "digest": model.manifest.files[MODEL_FILE]}
        )

    def model_failed(self, name: str, version: str) -> None:
        """A version could not be loaded."""
        self._loads.labels(name, version, FAILED).inc()

    def model_unloaded(self, model: Model) -> None:
        """What told of its present goes; counters stay: its last requests are still to be counted, and it may return,
        which must not look like a restart."""
        labels = _labels(model)
        self._queue_sequences.remove(*labels)
        self._queue_tokens.remove(*labels)
        self._info.remove(*labels)
        self._load_seconds.remove(*labels[:2])

    def refused(self, reason: str) -> None:
        """A call may not come in; `reason` is one of REFUSALS."""
        self._refused.labels(reason).inc()

    def waited(self, threads: str, seconds: float) -> None:
        """Work on a request began, for which it needed one of these threads: CODEC or TOKENIZE."""
        self._wait.labels(threads).observe(seconds)

    def encoded(self, model: Model, seconds: float) -> None:
        """A request became features."""
        self._of(model).encode.observe(seconds)

    def truncated(self, model: Model, count: int) -> None:
        """Inputs of a request were cut."""
        self._truncated.labels(*_labels(model)).inc(count)

    def decoded(self, model: Model, seconds: float) -> None:
        """The outputs for a request became a reply."""
        self._of(model).decode.observe(seconds)

    def rejected(self, model: Model, reason: str) -> None:
        """A request found no room; `reason` is one of REJECTIONS' values."""
        self._rejected.labels(*_labels(model), reason).inc()

    def cache_asked(self, model: Model, *, hit: bool) -> None:
        """A reply was looked for in the cache; where none was there, it is computed by now."""
        self._cache_requests.labels(*_labels(model), HIT if hit else MISS).inc()

    def cache_evicted(self, count: int) -> None:
        """Replies had to make room for another."""
        self._cache_evicted.inc(count)

    def batch_done(self, model: Model, batch: Batch) -> None:
        """A batch was computed."""
        series = self._of(model)
        for wait_s in batch.queue_s:
            series.queue.observe(wait_s)
        series.inference.observe(batch.inference_s)
        series.rows.observe(batch.rows)
        series.batch_tokens.observe(batch.padded_tokens)
        series.tokens.inc(batch.num_tokens)
        series.padding.inc(batch.padded_tokens - batch.num_tokens)

    def sequences_dropped(self, model: Model, count: int) -> None:
        """Sequences left the queue without being computed."""
        self._cancelled.labels(*_labels(model)).inc(count)


class _States(Collector):
    """The state of each version, 1 for the one it is in: no version can be forgotten, and none stays behind."""

    def __init__(self, states: Callable[[], Mapping[tuple[str, str], State]]) -> None:
        self._states = states

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "bertline_model_state", "1 for the state that a version is in.", labels=(*VERSION_LABELS, "state")
        )
        for key, current in self._states().items():
            for state in State:
                family.add_metric((*key, state.value), state is current)
        yield family


class _Health(Collector):
    """What health checks are told, but of the service without a name: to Prometheus an empty label is none."""

    def __init__(self, serving: Callable[[], Mapping[str, bool]]) -> None:
        self._serving = serving

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily("bertline_serving", "1 while health checks are told SERVING.", labels=("service",))
        for service, serves in self._serving().items():
            if service:
                family.add_metric((service,), serves)
        yield family


class _Reloads(Collector):
    """Whether files that are read again when they change can be used."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "bertline_reload_failed",
            "1 while changed files cannot be used, and what was read before stays in use.",
            labels=("what",),
        )
        for what, is_failing in watched.failing().items():
            family.add_metric((what,), is_failing)
        yield family


class _Dropped(Collector):
    """Lines of the log that were dropped."""

    def __init__(self, num_dropped: Callable[[], int]) -> None:
        self._num_dropped = num_dropped

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(
            "bertline_log_lines_dropped", "Lines of the log that could not be written.", self._num_dropped()
        )


def _labels(model: Model) -> tuple[str, str, str]:
    return model.manifest.name, model.manifest.version, model.manifest.task
