import io
import json
import logging
import socket
import urllib.request

import grpc
import pytest

from bertline.v1 import encoder_pb2 as pb
from bertline.v1 import encoder_pb2_grpc
from serving.core.calls import Call, Stage
from serving.process import call_log
from serving.process.call_log import CallLog
from serving.process.logs import JsonFormatter, TextFormatter
from tests.serving.conftest import serve
from tests.serving.http_api.requests import port_of, post

GOOD, BAD = pb.EmbedRequest(texts=["cat", "the cat"]), pb.EmbedRequest(texts=[""])


def call_lines(caplog):
    """Return the fields of the log lines of calls."""
    return [record.fields for record in caplog.records if record.name == "serving.calls"]


@pytest.mark.parametrize(
    ("which", "names"), [("none", []), ("failed", ["Embed"]), ("all", ["Embed", "Embed", "Watch"])]
)
def test_calls_are_logged_as_set(caplog, which, names):
    """Calls are logged as set, one line each; a client that closes its watch did not fail."""
    caplog.set_level(logging.INFO)
    log = CallLog(which)
    for method, status in (("Encoder/Embed", "OK"), ("Encoder/Embed", "CANCELLED"), ("Health/Watch", "CANCELLED")):
        log(Call(f"/service.{method}", status=status))

    assert [line["method"] for line in call_lines(caplog)] == names


def test_line_of_a_call(embedder, caplog):
    """The line of a call has id, method, model, sizes and durations, that of a failed call the error, and that of a
    cached reply where it came from."""
    caplog.set_level(logging.INFO)
    with serve(embedder, log_calls="all", cache_bytes=10_000) as running:
        reply = running.stub.Embed(GOOD, metadata=(("x-request-id", "job-7"),))
        running.stub.Embed.future(BAD).exception()
        running.stub.Embed(GOOD)
        running.wait_for("grpc_server_handled_total", 3)

    good, bad, cached = call_lines(caplog)

    assert good | {"ms": 0, "tokenize_ms": 0, "queue_ms": 0, "inference_ms": 0} == {
        "method": "Embed",
        "code": "OK",
        "request_id": "job-7",
        "peer": "ipv4:127.0.0.1",
        "model": "embedder/1",
        "inputs": 2,
        "tokens": 7,
        "request_bytes": GOOD.ByteSize(),
        "reply_bytes": reply.ByteSize(),
        "ms": 0,
        "tokenize_ms": 0,
        "queue_ms": 0,
        "inference_ms": 0,
    }
    assert good["ms"] >= good["tokenize_ms"] + good["queue_ms"] + good["inference_ms"]
    assert bad["error"].startswith("texts[0]: empty")
    assert cached["from_cache"]


def test_http_calls_are_named_by_method_and_route(embedder, caplog):
    """Routes that end alike have separate lines, and names stand for all their values."""
    caplog.set_level(logging.INFO)
    with serve(embedder, log_calls="all", http_port=0) as running:
        for path in ("/v1/embed", "/embed", "/", "/tei/embedder/embed"):
            post(running, path, {})

    names = [line["method"] for line in call_lines(caplog)]
    assert names == ["POST /v1/embed", "POST /embed", "POST /", "POST /tei/{model}/embed"]


def has_ipv6():
    """Return whether a server can listen at ::1."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6")
def test_peers_are_named_alike_by_all_fronts(embedder, caplog):
    """A client's IPv6 address is the same over gRPC and HTTP, so that limits of a client hold for both together."""
    caplog.set_level(logging.INFO)
    with serve(embedder, log_calls="all", host="::1", http_port=0) as running:
        with grpc.insecure_channel(f"[::1]:{running.server.port}") as channel:
            encoder_pb2_grpc.EncoderStub(channel).Embed(GOOD)
        with urllib.request.urlopen(f"http://[::1]:{port_of(running)}/v1/models", timeout=10) as reply:
            assert reply.status == 200

    assert [line["peer"] for line in call_lines(caplog)] == ["ipv6:[::1]"] * 2


def test_log_adds_up_the_waits_of_a_call(caplog):
    """The log adds up the waits of a call for a thread."""
    caplog.set_level(logging.INFO)
    stages = [Stage("wait", 0.0, 0.5), Stage("tokenize", 0.5, 0.1), Stage("wait", 0.6, 0.25)]
    CallLog("all")(Call("/bertline.v1.Encoder/Embed", stages=stages))

    (line,) = call_lines(caplog)

    assert (line["wait_ms"], line["tokenize_ms"]) == (750, 100)


def test_floods(caplog, monkeypatch):
    """The log has the first failed calls of each second, and the number of omitted ones."""
    caplog.set_level(logging.INFO)
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    log = CallLog("failed")
    failed = Call("/service/Method", status="RESOURCE_EXHAUSTED")
    for _ in range(1000):
        log(failed)
    now = 101.0
    log(failed)
    log(failed)

    lines = call_lines(caplog)

    assert len(lines) == call_log.MAX_FAILED_PER_S + 2
    assert [line.get("omitted") for line in lines[-3:]] == [None, 1000 - call_log.MAX_FAILED_PER_S, None]


def formatted(formatter, **fields):
    """Return a formatted line with fields, and one with a traceback."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.Logger("serving.test")
    logger.addHandler(handler)
    logger.info("call of %s", "Embed", extra={"fields": fields})
    try:
        raise ValueError("broken\ntwice")
    except ValueError:
        logger.exception("it failed")
    return stream.getvalue()


def test_json():
    """Each line is a JSON object, tracebacks included."""
    first, second = map(json.loads, formatted(JsonFormatter(), code="OK", ms=1.5, error='"a"\nb').splitlines())

    assert first.pop("time").endswith("+00:00")
    assert first == {
        "level": "info",
        "logger": "serving.test",
        "message": "call of Embed",
        "code": "OK",
        "ms": 1.5,
        "error": '"a"\nb',
    }
    assert second["level"] == "error"
    assert "ValueError: broken" in second["error"]


def test_text_format_quotes_values():
    """Fields follow the message, and values that look like fields or lines are quoted."""
    line = formatted(TextFormatter(), code="OK", ms=1.5, error="a=b\nERROR", empty="").splitlines()[0]

    assert line.endswith(r'INFO serving.test: call of Embed code=OK ms=1.5 error="a=b\nERROR" empty=""')
