import re

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from bertline.v1 import encoder_pb2 as pb
from serving.core.errors import (
    ERRORS,
    INTERNAL_REASON,
    MAX_MESSAGE_BYTES,
    ErrorKind,
    RefusedError,
    ServingError,
)
from serving.endpoints.methods import METHODS
from serving.grpc_api.status import CODES, MAX_DETAILS_BYTES
from tests.serving.conftest import serve
from tests.serving.models import write_model


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """Server with two embedders, one of them in three versions."""
    models = tmp_path_factory.mktemp("versions")
    for version in ("1", "9", "10"):
        write_model(models, "many", version)
    write_model(models, "other")
    with serve(models) as running:
        yield running


def refused(call, request, **options):
    """Make a call that must fail; return its error, and the fields that the details name."""
    with pytest.raises(grpc.RpcError) as caught:
        call(request, **options)
    error = caught.value
    status = rpc_status.from_call(error)
    bad = error_details_pb2.BadRequest()
    if status and len(status.details) > 1:
        assert status.details[0].Unpack(bad)
    return error, {item.field: item.description for item in bad.field_violations}


def error_info(error):
    """Return the google.rpc.ErrorInfo of an error, which is the last of its details."""
    info = error_details_pb2.ErrorInfo()
    assert rpc_status.from_call(error).details[-1].Unpack(info)
    assert info.domain == "bertline"
    return info


@pytest.mark.parametrize(
    ("method", "fields", "expected"),
    [
        ("Embed", {"texts": ["cat", "", "dog", " "]}, {"texts[1]": "empty", "texts[3]": "empty"}),
        ("Embed", {"texts": ["dog", "cat " * 31]}, {"texts[1]": "`33` tokens (maximum `32`)"}),
        ("Embed", {"texts": ["dog"], "pooling": pb.POOLING_CLS}, {"pooling": "has `mean`, not `cls`"}),
        (
            "Embed",
            {"texts": ["dog"], "dimensions": 9, "window_stride": 8, "normalize": False},
            {"dimensions": "`9` is more than the 8 dimensions of this model", "window_stride": "needs `windows`"},
        ),
        (
            "Classify",
            {"inputs": [{"text": "a", "text_pair": ""}, {"text": ""}]},
            {"inputs[0].text_pair": "empty", "inputs[1].text": "empty"},
        ),
        (
            "Answer",
            {"inputs": [{"question": "who", "contexts": [""]}, {"contexts": ["cat", " "]}]},
            {"inputs[0].contexts[0]": "empty", "inputs[1].question": "empty", "inputs[1].contexts[1]": "empty"},
        ),
        (
            "Answer",
            {"inputs": [{"question": "who", "contexts": ["cat"]}, {"question": "who"}]},
            {"inputs[1].contexts": "at least one"},
        ),
        (
            "Choose",
            {"inputs": [{"choices": ["cat", ""]}, {"context": "who " * 20, "choices": ["cat", "dog"]}]},
            {"inputs[0].choices[1]": "empty", "inputs[1].context": "`24` tokens (maximum `16`)"},
        ),
        (
            "Choose",
            {"inputs": [{"choices": ["cat", "dog"]}, {"question": " ", "choices": ["cat", "dog"]}]},
            {"inputs[1].question": "empty"},
        ),
        (
            "Tag",
            {"inputs": [{"text": "cat"}, {}, {"text": "cat", "words": ["dog"]}]},
            {"inputs[2].words": "give one of them"},
        ),
        (
            "Tag",
            {"inputs": [{"text": "\u200b"}, {"words": ["", " "]}, {"words": ["cat", "cat." * 9]}]},
            {"inputs[0].text": "empty", "inputs[1].words": "empty"},
        ),
        ("FillMask", {"texts": ["[MASK]", "cat"]}, {"texts[1]": "[MASK]"}),
        ("FillMask", {"texts": ["[MASK]"], "targets": ["cat", "qqq"]}, {"targets[1]": "vocabulary"}),
    ],
)
def test_bad_fields(server, method, fields, expected):
    """Invalid inputs are INVALID_ARGUMENT, and the details name exactly the invalid fields."""
    error, fields = refused(getattr(server.stub, method), getattr(pb, f"{method}Request")(**fields))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert fields.keys() == expected.keys()
    assert all(part in fields[field] for field, part in expected.items())
    assert all(field in error.details() for field in list(fields)[:3])
    assert error_info(error).reason == "INVALID_REQUEST"
    assert error_info(error).metadata == {"num_violations": str(len(expected))}


def test_very_many_bad_fields(server):
    """The message names the first bad fields, and counts those that do not fit into the metadata."""
    error, fields = refused(server.stub.Embed, pb.EmbedRequest(texts=["cat " * 40] * 1000))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert list(fields)[:2] == ["texts[0]", "texts[1]"]
    assert len(fields) > 20
    assert "997 more" in error.details()
    assert error_info(error).metadata == {"num_violations": "1000"}
    details = [value for key, value in error.trailing_metadata() if key == "grpc-status-details-bin"]
    assert sum(map(len, details)) < MAX_DETAILS_BYTES + 2 * MAX_MESSAGE_BYTES


def test_long_names(server):
    """Errors that repeat long names of the request stay short, also those of health checks."""
    name = "\N{PILE OF POO}" * 100_000
    errors = [
        refused(server.stub.Embed, pb.EmbedRequest(model=pb.ModelRef(name=name)))[0],
        refused(health_pb2_grpc.HealthStub(server.channel).Check, health_pb2.HealthCheckRequest(service=name[:1000]))[
            0
        ],
    ]

    assert [error.code() for error in errors] == [grpc.StatusCode.NOT_FOUND] * 2


def raw_call(server, method, data):
    return server.channel.unary_unary(f"/bertline.v1.Encoder/{method}")(data)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_malformed_message_names_the_expected_type(server, method):
    """Bytes that are not a message are INVALID_ARGUMENT, and the error gives the expected type."""
    error, fields = refused(lambda raw: raw_call(server, method, raw), b"\x0f\xff\xff")

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"bertline.v1.{method}Request" in error.details()
    assert not fields


@pytest.mark.parametrize(
    ("name", "version", "listed"),
    [
        ("nobody", "", "many/1 (embedding), many/9 (embedding), many/10"),
        ("many", "2", "1, 9, 10"),
        ("many/9", "", "put the version into the field `version` (loaded: "),
    ],
)
def test_model_not_found(versions, name, version, listed):
    """Unknown models and versions are NOT_FOUND, and the message lists the loaded ones."""
    error, _ = refused(versions.stub.Embed, pb.EmbedRequest(model=pb.ModelRef(name=name, version=version)))

    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert listed in error.details()


@pytest.mark.parametrize("method", ["GetModel", "Tokenize"])
def test_calls_for_any_task_find_models_by_the_same_rules(versions, method):
    """Calls for models of any task find them by the same rules."""
    call, request_type = getattr(versions.stub, method), getattr(pb, f"{method}Request")

    for sent, expected in (("", "10"), ("9", "9")):  # the numerically highest one by default
        assert call(request_type(model=pb.ModelRef(name="many", version=sent))).model.version == expected
    error, _ = refused(call, request_type())
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "several models are loaded; name one: many/10 (embedding), other/1 (embedding)" in error.details()
    error, _ = refused(call, request_type(model=pb.ModelRef(name="many", version="2")))
    assert error.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(("method", "name"), [("Embed", ""), ("Classify", ""), ("Classify", "many")])
def test_ambiguous_model_or_wrong_task(versions, method, name):
    """No name with several models, or a task that none of them has, is INVALID_ARGUMENT; the message lists them."""
    request = getattr(pb, f"{method}Request")(model=pb.ModelRef(name=name))
    error, _ = refused(getattr(versions.stub, method), request)

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert {"Embed": "many/10", "Classify": "many/1 (embedding)"}[method] in error.details()


@pytest.mark.parametrize(
    ("count", "message", "counted"),
    [
        (
            300,
            "the message is too large: `1500` bytes (maximum `1000`, --max-request-bytes); send fewer or",
            1,
        ),
        (1000, "Received message larger than max (5000 vs. 2000)", 0),
    ],
)
def test_too_large_message(embedder, count, message, counted):
    """A message above the limit is RESOURCE_EXHAUSTED without retry, from the server or from gRPC."""
    with serve(embedder, max_request_bytes=1000) as running:
        error, _ = refused(running.stub.Embed, pb.EmbedRequest(texts=["cat"] * count))

        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert message in error.details()
        assert bool(error.trailing_metadata()) == bool(counted)  # gRPC's own refusals have none
        assert not counted or dict(error.trailing_metadata())["grpc-retry-pushback-ms"] == "-1"
        assert not counted or error_info(error).reason == "MESSAGE_TOO_LARGE"
        assert running.stub.Embed(pb.EmbedRequest(texts=["cat"])).num_tokens == [3]
        running.wait_for("grpc_server_handled_total", 1 + counted)
        assert running.total("grpc_server_handled_total", grpc_code="ResourceExhausted") == counted
        assert running.total("bertline_refused_total", reason="message_too_large") == counted


def embedded(server, *metadata):
    request = pb.EmbedRequest(texts=["cat"] * 100, model={"name": "embedder"})
    return server.stub.Embed.future(request, metadata=metadata, timeout=10)


def test_a_reply_that_the_client_does_not_take_is_refused(server):
    """A reply above `max-reply-bytes` is refused with both sizes, and a smaller one is sent."""
    size = embedded(server).result().ByteSize()

    assert size > 100 * 8 * 4
    assert embedded(server, ("max-reply-bytes", str(size + 100))).code() is grpc.StatusCode.OK
    refusal = embedded(server, ("max-reply-bytes", "3000"))
    assert refusal.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert re.match(r"the reply is too large: `\d+` bytes \(maximum `3000`, max-reply-bytes\)", refusal.details())


@pytest.mark.parametrize("value", ["", "4 MiB", "9" * 30])
def test_invalid_reply_limits_are_refused(server, value):
    """A `max-reply-bytes` that is not a number is INVALID_ARGUMENT."""
    call = embedded(server, ("max-reply-bytes", value))

    assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert call.details() == f"`max-reply-bytes` must be a number of bytes: `{value}`"


def test_all_errors_have_a_status():
    """Every kind of error has a code, and every class that is raised has a separate reason."""
    assert set(CODES) == set(ErrorKind)
    assert set(ERRORS) == set(subclasses(ServingError)) - {RefusedError}
    assert len({*(error.reason for error in ERRORS), INTERNAL_REASON}) == len(ERRORS) + 1


def subclasses(kind):
    """Return the subclasses of a class, at any depth."""
    return {found for child in kind.__subclasses__() for found in (child, *subclasses(child))}


def test_unexpected_errors(versions, monkeypatch, caplog):
    """An unexpected error is INTERNAL without details, and the log has the traceback."""

    def fail(*arguments):
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr("serving.endpoints.methods.describe", fail)
    error, _ = refused(versions.stub.ListModels, pb.ListModelsRequest())

    assert error.code() is grpc.StatusCode.INTERNAL
    assert error_info(error).reason == "INTERNAL"
    assert "secret" not in error.details()
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.exc_info[2].tb_frame
