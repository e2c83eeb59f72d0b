"""OpenTelemetry traces: a span for each call with child spans for its stages, created when the call has ended."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

from serving.core.calls import Call
from serving.settings import missing_package

logger = logging.getLogger(__name__)

CLOSE_S = 1.0
"""Maximum seconds that shutdown waits for a collector."""
SERVICE_NAME = "bertline"
"""Default service name; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override it."""


class Traces:
    """Sender of spans to a collector, in a separate thread."""

    def __init__(self, endpoint: str, sample: float) -> None:
        """Start the sender. If there is no collector, this is logged after the first spans.

        Args:
            endpoint: address of the collector (OTLP over gRPC); `https://` for TLS.
            sample: fraction of calls to trace, 0 to 1. A call that is part of a trace follows that
                trace's decision.

        Raises:
            ValueError: when OpenTelemetry is not installed.
        """
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
            from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ModuleNotFoundError as error:
            purpose = "--trace-endpoint (or OTEL_EXPORTER_OTLP_ENDPOINT)"
            raise missing_package(purpose, error.name, "tracing") from error
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": SERVICE_NAME}).merge(OTELResourceDetector().detect()),
            sampler=ParentBasedTraceIdRatio(sample),
            shutdown_on_exit=False,
        )
        self._sender = _CountingExporter(OTLPSpanExporter(endpoint=endpoint), SpanExportResult.SUCCESS)
        self._provider.add_span_processor(BatchSpanProcessor(cast(Any, self._sender)))
        self._tracer = self._provider.get_tracer("serving")
        self._num_spans = 0
        """Number of ended spans. OpenTelemetry drops some before they reach the exporter if too many wait."""

    def observer(
        self, attributes: Callable[[Call], Mapping[str, str | int]], faults: Collection[str]
    ) -> Callable[[Call], None]:
        """Return a function that traces an ended call of one protocol.

        Args:
            attributes: returns the attributes of a call's span that the conventions for the protocol ask for.
            faults: names of the statuses that are errors of the server.
        """

        def trace(call: Call) -> None:
            epoch_ns = time.time_ns() - time.monotonic_ns()
            span = self._tracer.start_span(
                call.path.removeprefix("/"),
                context=self._propagator.extract(call.trace_context),
                kind=self._trace.SpanKind.SERVER,
                start_time=epoch_ns + _ns(call.started_s),
                attributes={
                    **attributes(call),
                    "client.address": call.peer,
                    "bertline.request_id": call.request_id,
                    "bertline.model": call.model,
                    "bertline.inputs": call.num_inputs,
                    "bertline.tokens": call.num_tokens,
                },
            )
            if span.is_recording():
                self._num_spans += 1 + len(call.stages)
                context = self._trace.set_span_in_context(span)
                for stage in call.stages:
                    start_ns, end_ns = epoch_ns + _ns(stage.started_s), epoch_ns + _ns(stage.started_s + stage.seconds)
                    self._tracer.start_span(stage.name, context=context, start_time=start_ns).end(end_ns)
            if call.status in faults:
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, call.details))
            span.end(epoch_ns + _ns(call.started_s + call.seconds))

        return trace

    def close(self) -> None:
        """Send the remaining spans for at most CLOSE_S, then end. May be called again."""
        timeout = threading.Timer(CLOSE_S, self._sender.shutdown)
        timeout.start()
        self._provider.shutdown()
        timeout.cancel()
        num_lost, self._num_spans = self._num_spans - self._sender.num_sent, self._sender.num_sent
        if num_lost:
            logger.warning("%d spans were lost: the collector of traces did not receive them", num_lost)


class _CountingExporter:
    """OpenTelemetry's exporter with a count of the sent spans; its shutdown interrupts a running export."""

    def __init__(self, exporter: Any, success: Any) -> None:
        self.num_sent = 0
        self._exporter = exporter
        self._success = success
        self._ended = False

    def export(self, spans: Sequence[Any]) -> Any:
        result = None if self._ended else self._exporter.export(spans)
        if result is self._success:
            self.num_sent += len(spans)
        return result

    def shutdown(self) -> None:
        if not self._ended:
            self._ended = True
            self._exporter.shutdown()


def _ns(seconds: float) -> int:
    """Convert monotonic seconds to nanoseconds; a float of seconds since 1970 cannot resolve microseconds."""
    return int(seconds * 1e9)
