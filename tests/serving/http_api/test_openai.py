"""OpenAI's routes, by plain requests and by OpenAI's own client."""

import base64

import numpy as np
import openai
import pytest
from tokenizers import Tokenizer

from tests.serving.conftest import SPACE
from tests.serving.http_api.requests import port_of, post, send

TEXTS = ["the cat sees the old dog", "a bird"]


def vectors_of(reply):
    return np.array([item["embedding"] for item in reply.json()["data"]], np.float32)


def test_embeddings(server, references):
    """Vectors are those of the model, as numbers or as little-endian floats in base64."""
    expected = np.stack(references["embedder"].predict(TEXTS))

    numbers = post(server, "/v1/embeddings", {"input": TEXTS, "model": "embedder"})
    packed = post(server, "/v1/embeddings", {"input": TEXTS, "model": "embedder/1", "encoding_format": "base64"})

    np.testing.assert_allclose(vectors_of(numbers), expected, rtol=1e-4, atol=1e-5)
    rows = [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in packed.json()["data"]]
    np.testing.assert_array_equal(np.stack(rows), vectors_of(numbers))
    found = numbers.json()
    assert [(item["object"], item["index"]) for item in found["data"]] == [("embedding", 0), ("embedding", 1)]
    assert (found["object"], found["model"]) == ("list", "embedder")
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > 0


def test_space_of_vectors(server):
    """All routes name the space of the vectors in a header, OpenAI's in its field, those of RPCs in the model; errors
    and tasks without vectors have none."""
    routes = {"/v1/embeddings": {"input": "a bird"}, "/embed": {"inputs": "a bird"}, "/v1/embed": {"texts": ["a bird"]}}

    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a bird"]}
    routes["/v2/models/embedder/infer"] = {"inputs": [tensor]}

    replies = [post(server, path, values) for path, values in routes.items()]

    assert [reply.headers.get("x-space") for reply in replies] == [SPACE] * 4
    assert replies[0].json()["system_fingerprint"] == replies[2].json()["model"]["space"] == SPACE
    assert post(server, "/v1/classify", {"inputs": ["a bird"]}).headers.get("x-space") is None
    refused = post(server, "/v1/embed", {"texts": ["a bird"], "model": {"space": "f" * 16}})
    assert (refused.status, refused.json()["error"]["reason"]) == (404, "OTHER_SPACE")
    assert refused.headers.get("x-space") is None


@pytest.mark.parametrize("dimensions", [None, 3])
def test_token_ids(dimensions, server):
    """Token ids of the model's tokenizer give the vectors of their texts."""
    tokens = post(
        server, "/v1/tokenize", {"model": {"name": "embedder"}, "inputs": [{"text": text} for text in TEXTS]}
    ).json()
    ids = [item["ids"] for item in tokens["results"]]
    options = {} if dimensions is None else {"dimensions": dimensions}

    texts, rows, one = (post(server, "/v1/embeddings", {"input": value, **options}) for value in (TEXTS, ids, ids[0]))

    assert vectors_of(texts).shape[1] == (dimensions or vectors_of(texts).shape[1])
    np.testing.assert_allclose(vectors_of(rows), vectors_of(texts), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(vectors_of(one), vectors_of(texts)[:1], rtol=1e-4, atol=1e-5)
    assert rows.json()["usage"] == texts.json()["usage"]


@pytest.mark.parametrize("num_tokens", [8, 9, 31, 32, -1])
@pytest.mark.parametrize("kind", ["texts", "token ids"])
def test_long_texts_are_cut(num_tokens, kind, server, all_tasks):
    """`truncate_prompt_tokens` cuts as the tokenizer itself does, at the end of the text; -1 and `truncate` at the
    model's maximum."""
    tokenizer = Tokenizer.from_file(str(all_tasks[0] / "embedder" / "1" / "tokenizer.json"))
    texts = ["the cat sees the old dog " * 10, "a bird"]
    whole = [item.ids for item in tokenizer.encode_batch(texts)]
    tokenizer.enable_truncation(num_tokens if num_tokens > 0 else 32)
    expected = post(server, "/v1/embeddings", {"input": [item.ids for item in tokenizer.encode_batch(texts)]}).json()

    sent = texts if kind == "texts" else whole
    bodies = [{"input": sent, "truncate_prompt_tokens": num_tokens}]
    if num_tokens in (-1, 32):
        bodies += [{"input": sent, "truncate": value} for value in (True, "END")]
    for body in bodies:
        found = post(server, "/v1/embeddings", body)
        np.testing.assert_allclose(vectors_of(found), [item["embedding"] for item in expected["data"]], atol=1e-5)
        assert found.json()["usage"] == expected["usage"]


def test_models(server):
    """Models are listed once, and found by name."""
    listed = send(server, "GET", "/v1/models").json()

    assert listed["object"] == "list"
    names = [item["id"] for item in listed["data"]]
    assert names == sorted(set(names))
    assert "embedder" in names
    assert send(server, "GET", "/v1/models/embedder").json() == listed["data"][names.index("embedder")]
    assert send(server, "GET", "/v1/models/embedder/1").status == 200
    missing = send(server, "GET", "/v1/models/none")
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("body", "status", "param", "message"),
    [
        ({}, 400, "input", "missing"),
        ({"input": [1, "a"]}, 400, "input", "item 0 is neither a text nor"),
        ({"input": ["a", 1]}, 400, "input", "item 1 is not a text"),
        ({"input": ""}, 400, "input[0]", "empty text"),
        ({"input": "a", "encoding_format": "hex"}, 400, "encoding_format", "'float' or 'base64'"),
        ({"input": "a", "dimensions": 0}, 400, "dimensions", "greater than or equal to 1"),
        ({"input": [5], "dimensions": 10**6}, 400, "dimensions", "more than the"),
        ({"input": [2, 10**6, 3]}, 400, "input[0][1]", "must be from 0 to"),
        (
            {"input": [2, 5]},
            400,
            "input[0]",
            "begin with `2` and end with `5`, its own with `[2]` and `[3]`",
        ),
        ({"input": [2, 5, 3, 5, 3]}, 400, "input[0]", "special token `3` is inside"),
        (
            {"input": [[2, 5, 3], [1] * 100_000]},
            400,
            "input[1]",
            "too long: `100000` tokens (maximum `32`); set `truncate`",
        ),
        ({"input": "the cat " * 20}, 400, "input[0]", "shorten it or set `truncate`"),
        ({"input": "a", "prompt_name": "none"}, 400, "prompt_name", "unknown prompt"),
        ({"input": [5], "input_type": "query"}, 400, "input_type", "token ids get no prompt"),
        ({"input": [5], "model": "classifier"}, 400, None, "classif"),
    ],
)
def test_mistakes(body, status, param, message, server):
    """Errors have OpenAI's shape, and name the parameter."""
    reply = post(server, "/v1/embeddings", body)

    assert (reply.status, reply.error["type"]) == (status, "invalid_request_error")
    assert param is None or reply.error["param"] == param
    assert message in reply.error["message"]


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"prompt_name": "query"}, "the old "),
        ({"input_type": "query"}, "the old "),
        ({"input_type": "search_query"}, "the old "),
        ({"input_type": "passage"}, ""),
        ({"prompt_name": ""}, ""),
    ],
)
def test_prompts(server, references, fields, prompt):
    """Prompts are named, or follow from what the texts are."""
    found = post(server, "/v1/embeddings", {"model": "embedder", "input": TEXTS, **fields}).json()

    expected = references["embedder"].predict([prompt + text for text in TEXTS])
    np.testing.assert_allclose([item["embedding"] for item in found["data"]], expected, rtol=1e-4, atol=1e-5)


def test_client_of_openai(server, references):
    """OpenAI's own client works with the address changed, and raises its own errors."""
    expected = np.stack(references["embedder"].predict(TEXTS))
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port_of(server)}/v1", api_key="none", max_retries=0) as client:
        packed = client.embeddings.create(model="embedder", input=TEXTS)  # asks for base64 by itself
        numbers = client.embeddings.create(model="embedder", input=TEXTS[0], encoding_format="float", dimensions=3)
        names = [model.id for model in client.models.list()]
        model = client.models.retrieve("embedder")
        with pytest.raises(openai.NotFoundError, match="does not exist") as missing:
            client.embeddings.create(model="none", input="a")
        with pytest.raises(openai.BadRequestError, match="empty text") as wrong:
            client.embeddings.create(model="embedder", input=["a", " "])
        with pytest.raises(openai.APIStatusError, match="deadline"):
            client.embeddings.create(model="embedder", input=TEXTS, extra_headers={"x-request-timeout-s": "0.000001"})

    np.testing.assert_allclose([item.embedding for item in packed.data], expected, rtol=1e-4, atol=1e-5)
    assert len(numbers.data[0].embedding) == 3
    assert packed.usage.prompt_tokens > numbers.usage.prompt_tokens > 0
    assert model.id in names
    assert (missing.value.code, wrong.value.param) == ("model_not_found", "input[1]")
