"""RPCs over HTTP give the replies of gRPC."""

import base64

import pytest
from google.protobuf import json_format

from bertline.v1 import encoder_pb2 as pb
from serving.http_api.rpc import rpc_path, wrong_fields
from tests.serving.http_api.requests import post, send

TEXTS = ["the cat sees the old dog", "a bird"]
REQUESTS = {
    "Embed": pb.EmbedRequest(texts=TEXTS),
    "EmbedSparse": pb.EmbedSparseRequest(texts=TEXTS, top_k=5, return_tokens=True),
    "EmbedTokens": pb.EmbedTokensRequest(texts=TEXTS, input_type="INPUT_TYPE_DOCUMENT", return_offsets=True),
    "Classify": pb.ClassifyRequest(inputs=[pb.TextInput(text=text, text_pair="a dog") for text in TEXTS]),
    "Regress": pb.RegressRequest(inputs=[pb.TextInput(text=text) for text in TEXTS]),
    "Choose": pb.ChooseRequest(inputs=[pb.ChooseInput(question="the cat", choices=["the dog", "a bird"])]),
    "Answer": pb.AnswerRequest(inputs=[pb.AnswerInput(question="the cat", contexts=TEXTS)], top_k=3),
    "Rerank": pb.RerankRequest(
        model=pb.ModelRef(name="scorer"), inputs=[pb.RerankInput(query="the cat", documents=TEXTS)], top_n=1
    ),
    "Tag": pb.TagRequest(inputs=[pb.TagInput(text=TEXTS[0])]),
    "FillMask": pb.FillMaskRequest(texts=["the [MASK] sees a dog"]),
    "ZeroShot": pb.ZeroShotRequest(texts=TEXTS, labels=["a cat", "a river"], multi_label=True),
    "Tokenize": pb.TokenizeRequest(model=pb.ModelRef(name="embedder"), inputs=[pb.TextInput(text=TEXTS[0])]),
    "ListModels": pb.ListModelsRequest(),
    "GetModel": pb.GetModelRequest(model=pb.ModelRef(name="embedder")),
}


def without_timings(message):
    if hasattr(message, "timings"):
        message.ClearField("timings")
    return message


def test_every_rpc_has_a_request():
    """No RPC is left out of the tests below."""
    assert set(REQUESTS) == {method.name for method in pb.DESCRIPTOR.services_by_name["Encoder"].methods}


@pytest.mark.parametrize("rpc", REQUESTS)
def test_replies_are_those_of_grpc(rpc, server):
    """A reply in JSON holds what the RPC answers, under the names of the proto."""
    request = REQUESTS[rpc]
    expected = getattr(server.stub, rpc)(request)
    values = json_format.MessageToDict(request, preserving_proto_field_name=True)

    reply = post(server, rpc_path(rpc), values)

    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    found = json_format.ParseDict(reply.json(), type(expected)())
    if rpc == "Embed":
        assert len(base64.b64decode(reply.json()["vectors"])) == 4 * 2 * expected.dim
        assert reply.json()["num_tokens"] == list(expected.num_tokens)
    assert without_timings(found) == without_timings(expected)


@pytest.mark.parametrize(
    ("path", "body", "status", "reason", "message"),
    [
        ("/v1/embed", {"truncate": True, "windowStride": 1, "window_stride": 2}, 400, "INVALID_REQUEST", "window"),
        ("/v1/embed", {"texts": ["a", " "]}, 400, "INVALID_REQUEST", "texts[1]: empty text"),
        (
            "/v1/embed",
            {"model": {"name": "none"}, "texts": ["a"]},
            404,
            "MODEL_NOT_FOUND",
            "`none` does not exist",
        ),
        ("/v1/embed", b'{"dimensions": 1e400, "texts": ["a"]}', 400, "INVALID_REQUEST", "dimensions"),
        ("/v1/answer", {"inputs": [{"question": "a"}]}, 400, "INVALID_REQUEST", "inputs[0].contexts"),
        ("/v1/none", {}, 404, "METHOD_NOT_FOUND", "no such route: `POST /v1/none`"),
    ],
)
def test_mistakes(path, body, status, reason, message, server):
    """Errors have the status, the reason of the gRPC error, and name the field."""
    reply = post(server, path, body)

    assert (reply.status, reply.error["code"], reply.error["reason"]) == (status, status, reason)
    assert message in reply.error["message"]


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/embed", {"texts": 1}, {"texts": "must be a list"}),
        ("/v1/embed", {"texts": ["a", " ", "b", ""]}, {"texts[1]": "empty text", "texts[3]": "empty text"}),
        (
            "/v1/embed",
            {"model": 1, "texts": ["a", 1, None], "truncate": "yes", "dimensions": -1, "prompt_name": None},
            {
                "model": "must be an object (fields: name, version, space)",
                "texts[1]": "must be a string",
                "texts[2]": "must be a string",
                "truncate": "must be true or false",
                "dimensions": "must be an integer from 0 to 4294967295",
            },
        ),
        (
            "/v1/classify",
            {"inputs": [{"text": "a", "text_pair": []}, 1]},
            {
                "inputs[0].text_pair": "must be a string",
                "inputs[1]": "must be an object (fields: text, text_pair)",
            },
        ),
    ],
)
def test_fields_of_a_wrong_type_are_listed(path, body, expected, server):
    """Each field that the message does not have, or has with another type, is named with its path."""
    reply = post(server, path, body)
    found = {item["field"]: item["reason"] for item in reply.error["violations"]}

    assert (reply.status, reply.error["reason"], found.keys()) == (400, "INVALID_REQUEST", expected.keys())
    assert all(found[field].startswith(reason) for field, reason in expected.items())
    assert reply.error["message"].startswith("; ".join(f"{name}: {found[name]}" for name in list(found)[:3]))


@pytest.mark.parametrize("rpc", REQUESTS)
def test_every_type_of_a_field_has_a_name(rpc):
    """Whatever field of a request has a wrong value is named; correct requests have no wrong field."""
    request = REQUESTS[rpc]

    assert not list(wrong_fields(json_format.MessageToDict(request), type(request)))
    for field in request.DESCRIPTOR.fields:
        [found] = wrong_fields({field.name: [[]] if field.is_repeated else []}, type(request))
        assert found.field.partition("[")[0] == field.name
        assert found.reason.startswith("must be ")


def test_other_methods(server):
    """The reply names the methods of the path."""
    for method in ("GET", "PUT"):
        reply = send(server, method, "/v1/embed")

        assert (reply.status, reply.headers["allow"]) == (405, "POST")
        assert "use POST" in reply.error["message"]
