import socket
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from bertline.v1 import encoder_pb2 as pb
from serving.core.calls import Call
from tests.serving.conftest import serve
from tests.serving.http_api.requests import post

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}"


class Collector:
    """Collector of spans on a free port."""

    def __init__(self):
        service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
        self._request, self._reply = service.ExportTraceServiceRequest, service.ExportTraceServiceResponse
        self.requests = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        name = "opentelemetry.proto.collector.trace.v1.TraceService"
        method = grpc.unary_unary_rpc_method_handler(
            self._export, self._request.FromString, self._reply.SerializeToString
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Export": method}),))
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _export(self, request, context):
        self.requests.append(request)
        return self._reply()

    def stop(self):
        self._server.stop(0).wait()

    def spans(self):
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def resources(self):
        """Return the attributes of the senders of the spans."""
        return {
            item.key: item.value.string_value
            for request in self.requests
            for resource in request.resource_spans
            for item in resource.resource.attributes
        }


@pytest.fixture
def collector(monkeypatch):
    """Collector that servers have time to send to."""
    monkeypatch.setattr("serving.process.traces.CLOSE_S", 60)
    collector = Collector()
    yield collector
    collector.stop()


def test_call_is_a_span_of_the_callers_trace(embedder, collector):
    """A call is a span in the caller's trace, with child spans for its stages, sent before the server ends.

    Over HTTP its name is that of OpenTelemetry's conventions: method and route.
    """
    with serve(embedder, trace_endpoint=collector.endpoint, http_port=0) as running:
        running.stub.Embed(pb.EmbedRequest(texts=["cat"]), metadata=(("traceparent", PARENT.format(flags="01")),))
        running.stub.Embed.future(pb.EmbedRequest(texts=[""])).exception()
        assert post(running, "/v1/embed", {"texts": ["cat"]}).status == 200
        running.wait_for("http_server_handled_total", 1)
        running.wait_for("grpc_server_handled_total", 2)

    spans = collector.spans()
    call = next(span for span in spans if span.parent_span_id.hex() == "b7ad6b7169203331")
    stages = [span for span in spans if span.parent_span_id == call.span_id]

    assert call.name == "bertline.v1.Encoder/Embed"
    assert call.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert [stage.name for stage in stages] == ["tokenize", "queue", "inference"]
    for stage in stages:
        assert call.start_time_unix_nano <= stage.start_time_unix_nano <= stage.end_time_unix_nano
        assert stage.end_time_unix_nano <= call.end_time_unix_nano
    attributes = {item.key: item.value for item in call.attributes}
    assert attributes["bertline.model"].string_value == "embedder/1"
    assert attributes["rpc.grpc.status_code"].int_value == 0
    assert len({span.trace_id for span in spans}) == 3
    assert "POST /v1/embed" in [span.name for span in spans]
    assert collector.resources()["service.name"] == "bertline"


def test_sampling(embedder, collector):
    """A call is traced as its caller's trace decides, or by the fraction."""
    with serve(embedder, trace_endpoint=collector.endpoint, trace_sample=0.0) as running:
        for metadata in ((), (("traceparent", PARENT.format(flags="00")),), (("traceparent", "nonsense"),)):
            running.stub.ListModels(pb.ListModelsRequest(), metadata=metadata)
        running.stub.ListModels(pb.ListModelsRequest(), metadata=(("traceparent", PARENT.format(flags="01")),))
        running.wait_for("grpc_server_handled_total", 4)

    assert [span.name for span in collector.spans()] == ["bertline.v1.Encoder/ListModels"]


def test_a_trace_needs_its_parent():
    """A call belongs to a trace only with a `traceparent`."""
    sent = {"traceparent": "a", "tracestate": "b"}

    assert Call("", headers=sent | {"other": "c"}).trace_context == sent
    assert Call("", headers={"tracestate": "b"}).trace_context == {}


@pytest.fixture(params=["nobody listens", "somebody listens and says nothing"])
def no_collector(request):
    """Address where spans are lost."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        if request.param != "nobody listens":
            listening.listen()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_calls_are_answered_without_a_collector(embedder, no_collector, monkeypatch, caplog):
    """Without a collector, calls are answered and the server ends soon with the number of lost spans."""
    pytest.importorskip("opentelemetry.sdk")
    monkeypatch.setattr("serving.process.traces.CLOSE_S", 0.1)
    with serve(embedder, trace_endpoint=no_collector) as running:
        assert running.stub.ListModels(pb.ListModelsRequest()).models
        running.wait_for("grpc_server_handled_total", 1)
        started = time.monotonic()
        running.stop(0).result(10)

    assert time.monotonic() - started < 8  # OpenTelemetry would wait 10 s for a silent collector
    messages = [record.getMessage() for record in caplog.records if record.name == "serving.process.traces"]
    assert messages == ["1 spans were lost: the collector of traces did not receive them"]
