"""OpenTelemetry traces: a span of each call, with spans of its stages, made when it has ended."""

from __future__ import annotations

import time
from typing import Any

import grpc

from serving.calls import Call

SERVICE_NAME = "bertline"
"""Unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES names another."""

FAULTS = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""Statuses that OpenTelemetry's conventions call errors of a server; the others are for the client to mend."""


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
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ModuleNotFoundError as error:
            raise ValueError(
                f"traces (--trace-endpoint, OTEL_EXPORTER_OTLP_ENDPOINT) need the package `{error.name}`: "
                "pip install --group tracing -c constraints.txt"
            ) from error
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": SERVICE_NAME}).merge(OTELResourceDetector().detect()),
            sampler=ParentBasedTraceIdRatio(sample),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("serving")

    def __call__(self, call: Call) -> None:
        """Trace a call that has ended."""
        epoch_s = time.time() - time.monotonic()
        span = self._tracer.start_span(
            call.path[1:],
            context=self._propagator.extract(call.trace_context),
            kind=self._trace.SpanKind.SERVER,
            start_time=_ns(epoch_s + call.started_s),
            attributes=_attributes(call),
        )
        if span.is_recording():
            self._add_stages(span, call, epoch_s)
        if call.code in FAULTS:
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, call.details))
        span.end(_ns(epoch_s + call.started_s + call.seconds))

    def _add_stages(self, span: Any, call: Call, epoch_s: float) -> None:
        context = self._trace.set_span_in_context(span)
        for stage in call.stages:
            start_s = epoch_s + stage.started_s
            self._tracer.start_span(stage.name, context=context, start_time=_ns(start_s)).end(
                _ns(start_s + stage.seconds)
            )

    def close(self) -> None:
        """Send what is left, and end."""
        self._provider.shutdown()


def _attributes(call: Call) -> dict[str, str | int]:
    service, _, method = call.path[1:].rpartition("/")
    return {
        "rpc.system": "grpc",
        "rpc.service": service,
        "rpc.method": method,
        "rpc.grpc.status_code": call.code.value[0],
        "client.address": call.peer,
        "bertline.request_id": call.request_id,
        "bertline.model": call.model,
        "bertline.inputs": call.num_inputs,
        "bertline.tokens": call.num_tokens,
    }


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
