"""OpenTelemetry traces: a span of each call, with spans of its stages, made when it has ended."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast

from serving.core.calls import Call

logger = logging.getLogger(__name__)

CLOSE_S = 1.0
"""How long a server that ends waits for a collector that does not answer."""
SERVICE_NAME = "bertline"
"""Unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES names another."""


class Traces:
    """Sends spans to a collector, from a thread of its own."""

    def __init__(self, endpoint: str, sample: float) -> None:
        """Begin; whether a collector is there shows in the log, once there is something to send.

        Args:
            endpoint: of OTLP over gRPC; `https://` for TLS.
            sample: share of calls to trace, 0 to 1; a call that belongs to a trace does as that trace says.

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
            raise ValueError(
                f"traces (--trace-endpoint, OTEL_EXPORTER_OTLP_ENDPOINT) need the package `{error.name}`: "
                "python -m pip install --group tracing -c constraints.txt"
            ) from error
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": SERVICE_NAME}).merge(OTELResourceDetector().detect()),
            sampler=ParentBasedTraceIdRatio(sample),
            shutdown_on_exit=False,
        )
        self._sender = _Sender(OTLPSpanExporter(endpoint=endpoint), SpanExportResult.SUCCESS)
        self._provider.add_span_processor(BatchSpanProcessor(cast(Any, self._sender)))
        self._tracer = self._provider.get_tracer("serving")
        self._num_spans = 0
        """That ended. Where too many wait, OpenTelemetry drops some before the exporter sees them."""

    def observer(
        self, attributes: Callable[[Call], Mapping[str, str | int]], faults: Collection[str]
    ) -> Callable[[Call], None]:
        """Return a function that traces an ended call of one protocol.

        Args:
            attributes: returns the attributes of a call's span that the conventions for the protocol ask for.
            faults: names of the statuses that are errors of the server.
        """
        return partial(self._trace_call, attributes, faults)

    def _trace_call(
        self, attributes: Callable[[Call], Mapping[str, str | int]], faults: Collection[str], call: Call
    ) -> None:
        epoch_ns = time.time_ns() - time.monotonic_ns()
        span = self._tracer.start_span(
            call.path[1:],
            context=self._propagator.extract(call.trace_context),
            kind=self._trace.SpanKind.SERVER,
            start_time=epoch_ns + _ns(call.started_s),
            attributes={**attributes(call), **_attributes(call)},
        )
        if span.is_recording():
            self._num_spans += 1 + len(call.stages)
            self._add_stages(span, call, epoch_ns)
        if call.status in faults:
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, call.details))
        span.end(epoch_ns + _ns(call.started_s + call.seconds))

    def _add_stages(self, span: Any, call: Call, epoch_ns: int) -> None:
        context = self._trace.set_span_in_context(span)
        for stage in call.stages:
            start_ns, end_ns = (epoch_ns + _ns(s) for s in (stage.started_s, stage.started_s + stage.seconds))
            self._tracer.start_span(stage.name, context=context, start_time=start_ns).end(end_ns)

    def close(self) -> None:
        """Send what is left, for CLOSE_S at most, and end; again is fine."""
        giving_up = threading.Timer(CLOSE_S, self._sender.shutdown)
        giving_up.start()
        self._provider.shutdown()
        giving_up.cancel()
        num_lost, self._num_spans = self._num_spans - self._sender.num_sent, self._sender.num_sent
        if num_lost:
            logger.warning("spans that did not reach the collector of traces: %d", num_lost)


class _Sender:
    """OpenTelemetry's exporter, with a count of what it sent; its end is the end of what it is at."""

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


def _attributes(call: Call) -> dict[str, str | int]:
    return {
        "client.address": call.peer,
        "bertline.request_id": call.request_id,
        "bertline.model": call.model,
        "bertline.inputs": call.num_inputs,
        "bertline.tokens": call.num_tokens,
    }


def _ns(seconds: float) -> int:
    """Of seconds since the machine started: those since 1970 have too many digits for a float to tell microseconds."""
    return int(seconds * 1e9)
