"""Fields of JSON requests: absent ones, those that clients of a dialect send, names of models, single texts."""

import json
import re

import pytest

from tests.serving.http_api.requests import post, send
from tests.serving.http_api.test_fuzz import REQUESTS

DOCUMENTS = ["a river", "the cat sees the old dog"]
ACCEPTED = {
    # OpenAI's SDK; vLLM's, Infinity's and NVIDIA's fields of the same route
    "/v1/embeddings": [
        {"user": "u", "priority": 0, "request_id": "r", "add_special_tokens": True, "truncate_prompt_tokens": -1},
        {"embed_dtype": "float32", "endianness": "native", "modality": "text", "truncate": "NONE"},
        {"truncate": True, "output_dtype": "float", "normalize": None},
    ],
    # Cohere's SDKs, Jina, vLLM, Infinity
    "/v1/rerank": [{"rank_fields": ["text"], "return_documents": False, "user": "u", "raw_scores": False}],
    "/v2/rerank": [{"priority": 999, "max_tokens_per_doc": None, "request_id": "r"}],
    # TEI, and the client of the Hugging Face hub
    "/embed": [{"truncation_direction": "Right", "prompt_name": None, "dimensions": None}],
    "/predict": [{"raw_scores": False, "parameters": {"top_k": None}, "truncation_direction": "right"}],
    "/v2/models/embedder/infer": [
        {"model_name": "embedder", "id": ""},  # KServe
        {"parameters": {"priority": 1, "sequence_id": 7, "sequence_start": True, "sequence_end": True}},  # Triton
        {"parameters": {"truncate": None, "binary_data_output": None}, "outputs": None},
    ],
}


@pytest.fixture(scope="module")
def document(server):
    return send(server, "GET", "/openapi.json").json()


def answer(server, path, body):
    """Return what a request gives besides times."""
    reply = post(server, path, body, x_request_id="one")
    values = reply.json()
    if isinstance(values, dict):
        values.pop("timings", None)
    return reply.status, values


def schema_of(document, path, body):
    """Return the schema of a route that has the fields of a body."""
    path = re.sub(r"/v2/models/\w+", "/v2/models/{name}", path)
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    kinds = [resolved(document, item) for item in schema.get("anyOf", [schema])]
    return next(kind for kind in kinds if body.keys() <= kind["properties"].keys())


def resolved(document, schema):
    """Return the object or list that a schema allows, if it allows one."""
    if "$ref" in schema:
        return document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    kinds = [resolved(document, item) for item in schema.get("anyOf", ())]
    return next((kind for kind in kinds if kind.get("type") in ("object", "array")), schema)


def with_nulls(document, schema, value):
    """Yield the value with each absent optional field as null, also inside it."""
    if isinstance(value, list) and schema.get("type") == "array":
        for index, item in enumerate(value):
            for changed in with_nulls(document, resolved(document, schema["items"]), item):
                yield [*value[:index], changed, *value[index + 1 :]]
    if not isinstance(value, dict):
        return
    for name, field in schema.get("properties", {}).items():
        if name not in value and name not in schema.get("required", ()):
            yield {**value, name: None}
        elif name in value:
            for changed in with_nulls(document, resolved(document, field), value[name]):
                yield {**value, name: changed}


def test_every_route_with_a_body_is_tested(document):
    """Every operation with a body is tested; routes of a named model are the same operations."""
    described = {
        path
        for path, methods in document["paths"].items()
        if "requestBody" in methods.get("post", {}) and not path.startswith(("/tei/", "/v2/models/{name}/versions/"))
    }

    assert described == {re.sub(r"/v2/models/\w+", "/v2/models/{name}", path) for path in REQUESTS}


@pytest.mark.parametrize("path", REQUESTS)
def test_null_means_absent(path, document, server):
    """Each optional field may be null: the reply is that of a request without it."""
    body = REQUESTS[path]
    schema = schema_of(document, path, body)
    expected = answer(server, path, body)
    assert expected[0] == 200
    for changed in with_nulls(document, schema, body):
        assert answer(server, path, changed) == expected, changed
    if "required" in schema:  # a schema of fields, not of a message of protobuf
        optional = schema["properties"].keys() - schema["required"]
        assert all({"type": "null"} in schema["properties"][name]["anyOf"] for name in optional)


@pytest.mark.parametrize(("path", "fields"), [(path, item) for path, items in ACCEPTED.items() for item in items])
def test_fields_that_clients_send(path, fields, server):
    """Fields that change no answer are accepted, and change none."""
    assert answer(server, path, REQUESTS[path] | fields) == answer(server, path, REQUESTS[path])


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        ("/v1/embeddings", {"add_special_tokens": False}, "add_special_tokens"),
        ("/v1/embeddings", {"embed_dtype": "float16"}, "embed_dtype"),
        ("/v1/embeddings", {"endianness": "big"}, "endianness"),
        ("/v1/embeddings", {"messages": []}, "messages"),
        ("/v1/embeddings", {"truncate": "START"}, "truncate"),
        ("/v1/embeddings", {"truncate": False, "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ("/v1/embeddings", {"truncate_prompt_tokens": 7}, "truncate_prompt_tokens"),
        ("/v1/embeddings", {"truncate_prompt_tokens": 33}, "truncate_prompt_tokens"),
        ("/v1/embeddings", {"prompt_name": "long", "truncate_prompt_tokens": 18}, "truncate_prompt_tokens"),
        ("/v1/rerank", {"rank_fields": ["title"]}, "rank_fields[0]"),
        ("/v2/rerank", {"max_tokens_per_doc": 10}, "max_tokens_per_doc"),
        ("/v2/rerank", {"relevant_spans": {}}, "relevant_spans"),
        ("/v1/rerank", {"model": {"nam": "scorer"}}, "model.nam"),
        ("/v1/rerank", {"model": 3}, "model"),
        ("/embed", {"truncation_direction": "Left"}, "truncation_direction"),
        ("/tei/embedder/embed", {"model": "other"}, "model"),
        ("/predict", {"raw_scores": True}, "raw_scores"),
        ("/predict", {"parameters": {"top_k": 1}}, "parameters"),
        ("/v2/models/embedder/infer", {"model_name": "other"}, "model_name"),
        ("/v2/models/embedder/infer", {"parameters": {"timeout": 9}}, "parameters"),
    ],
)
def test_fields_that_are_refused(path, fields, named, server):
    """A field that would change the answer is refused by its name."""
    status, values = answer(server, path, REQUESTS[path.replace("/tei/embedder", "")] | fields)

    assert status == 400
    assert f"{named}: " in json.dumps(values)


@pytest.mark.parametrize("path", [path for path in REQUESTS if not path.startswith("/v2/models")])
def test_models_by_name_or_object(path, document, server):
    """Each JSON route takes a model as a name, a name with a version, or an object."""
    body = REQUESTS[path]
    if "model" not in schema_of(document, path, body)["properties"]:
        assert path == "/v1/list-models"
        return
    listed = post(server, "/v1/list-models", {}).json()["models"]
    models = [item["model"]["name"] for item in listed]
    found = [(name, answer(server, path, body | {"model": name})) for name in models]
    expected = next((name, item) for name, item in found if item[0] == 200)

    name = expected[0]
    for model in (f"{name}/1", {"name": name}, {"name": name, "version": "1"}, {"name": name, "version": None}):
        assert answer(server, path, body | {"model": model}) == expected[1]
    status, values = answer(server, path, body | {"model": {"name": "none"}})
    assert (status, "`none` does not exist" in json.dumps(values)) == (404, True)


@pytest.mark.parametrize(
    ("path", "short", "full"),
    [
        ("/v1/embed", {"texts": "the cat", "model": "embedder"}, {"texts": ["the cat"], "model": {"name": "embedder"}}),
        ("/v1/classify", {"inputs": "the cat"}, {"inputs": [{"text": "the cat"}]}),
        ("/v1/classify", {"inputs": ["cat", {"text": "dog"}]}, {"inputs": [{"text": "cat"}, {"text": "dog"}]}),
        ("/v1/tag", {"inputs": {"words": "cat"}}, {"inputs": [{"words": ["cat"]}]}),
        (
            "/v1/answer",
            {"inputs": {"question": "who", "contexts": "the cat"}},
            {"inputs": [{"question": "who", "contexts": ["the cat"]}]},
        ),
        ("/v1/fill-mask", {"texts": "the [MASK]", "targets": "cat"}, {"texts": ["the [MASK]"], "targets": ["cat"]}),
        ("/v1/tokenize", {"inputs": "a cat", "model": "embedder"}, {"inputs": ["a cat"], "model": "embedder/1"}),
        ("/predict", {"inputs": ["the cat"]}, {"inputs": "the cat"}),
        (
            "/rerank",
            {"query": "who", "texts": "a cat", "model": "scorer"},
            {"query": "who", "texts": ["a cat"], "model": "scorer"},
        ),
        (
            "/v1/rerank",
            {"query": "who", "documents": "a cat", "model": "scorer"},
            {"query": "who", "documents": ["a cat"], "model": {"name": "scorer"}},
        ),
    ],
)
def test_single_texts(path, short, full, server):
    """A text may stand for a list of one text, or for an input that has no other field."""
    expected = answer(server, path, full)

    assert expected[0] == 200
    assert answer(server, path, short) == expected


def test_a_request_of_cohere_where_teis_goes(server):
    """`/rerank` answers requests with `documents` as `/v1/rerank` does; errors name its fields."""
    body = {"query": "who", "documents": DOCUMENTS, "return_documents": True, "top_n": 1}
    expected = answer(server, "/v1/rerank", body | {"model": "scorer"})

    assert answer(server, "/rerank", body | {"model": "scorer"}) == expected
    assert answer(server, "/tei/scorer/rerank", body) == expected
    status, values = answer(server, "/tei/scorer/rerank", body | {"documents": ["a", ""]})
    assert (status, values["error"]) == (400, "documents[1]: empty text; it needs at least one word")
