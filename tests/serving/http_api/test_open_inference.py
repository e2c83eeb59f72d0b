"""Open Inference Protocol over REST, by plain requests and by Triton's client."""

import json
import subprocess
import sys

import numpy as np
import pytest

from serving.http_api.open_inference import BINARY
from tests.serving.http_api.requests import port_of, post, send

TEXTS = ["the cat sees the old dog", "a bird"]
INPUT = {"name": "text", "shape": [2], "datatype": "BYTES", "data": TEXTS}
SCRIPT = """
import json, sys
import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

texts = json.loads(sys.argv[2])
client = triton.InferenceServerClient(sys.argv[1])
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("embedder")
assert not client.is_model_ready("none")
answers = {"metadata": client.get_model_metadata("embedder"), "config": client.get_model_config("embedder")}
answers["server"], answers["index"] = client.get_server_metadata(), client.get_model_repository_index()
for binary in (True, False):
    item = triton.InferInput("text", [len(texts)], "BYTES")
    item.set_data_from_numpy(np.array(texts, dtype=object), binary_data=binary)
    output = triton.InferRequestedOutput("embedding", binary_data=binary)
    result = client.infer("embedder", [item], outputs=[output], request_id="7", model_version="1")
    answers[f"binary {binary}"] = result.as_numpy("embedding").tolist()
    assert result.get_response()["id"] == "7"
ids = triton.InferInput("input_ids", [1, 4], "INT64")
ids.set_data_from_numpy(np.array([[2, 8, 9, 3]], np.int64))
answers["ids"] = client.infer("embedder", [ids]).as_numpy("sentence_embedding").tolist()
try:
    client.infer("none", [ids])
except InferenceServerException as error:
    answers["error"] = error.message()
print(json.dumps(answers))
"""


def test_client_of_triton(server, references):
    """Vectors are those of the model, in binary and in JSON; metadata are those over gRPC."""
    command = [sys.executable, "-c", SCRIPT, f"127.0.0.1:{port_of(server)}", json.dumps(TEXTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    expected = np.stack(references["embedder"].predict(TEXTS))
    for kind in ("binary True", "binary False"):
        np.testing.assert_allclose(found[kind], expected, rtol=1e-4, atol=1e-5)
    assert np.shape(found["ids"]) == (1, expected.shape[1])
    assert found["metadata"]["name"] == found["config"]["name"] == "embedder"
    assert {"name": "text", "datatype": "BYTES", "shape": [-1]} in [
        {key: item[key] for key in ("name", "datatype", "shape")} for item in found["metadata"]["inputs"]
    ]
    assert found["server"]["name"] == "bertline"
    assert {"name": "embedder", "version": "1"}.items() <= next(
        item for item in found["index"] if item["name"] == "embedder"
    ).items()
    assert "does not exist" in found["error"]


def test_infer(server, references):
    """Elements may be nested or flat; labels and scores come back as JSON."""
    nested = INPUT | {"shape": [2, 1], "data": [[text] for text in TEXTS]}
    flat, deep, chosen = (
        post(server, f"/v2/models/{path}/infer", body).json()
        for path, body in (
            ("embedder", {"inputs": [INPUT], "id": "7"}),
            ("embedder/versions/1", {"inputs": [nested]}),
            ("classifier", {"inputs": [INPUT], "parameters": {"top_k": 1}}),
        )
    )

    expected = np.stack(references["embedder"].predict(TEXTS))
    (output,) = flat["outputs"]
    assert (flat["model_name"], flat["model_version"], flat["id"]) == ("embedder", "1", "7")
    assert output["shape"] == [2, expected.shape[1]]
    np.testing.assert_allclose(np.reshape(output["data"], output["shape"]), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(deep["outputs"][0]["data"], output["data"], rtol=1e-4, atol=1e-5)
    assert all(item["shape"] == [2, 1] for item in chosen["outputs"])
    assert all(
        isinstance(label, str) for item in chosen["outputs"] if item["datatype"] == "BYTES" for label in item["data"]
    )


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("none", {"inputs": [INPUT]}, 404, "does not exist"),
        ("embedder", {"inputs": [INPUT | {"shape": [2**70]}]}, 400, "inputs[0].shape"),
        ("embedder", {"inputs": [INPUT | {"data": ["a", 1]}]}, 400, "element 1 is no text"),
        ("embedder", {"inputs": [INPUT | {"data": None}]}, 400, "needs either"),
        ("embedder", {"inputs": [INPUT | {"data": [[[["a"]]]]}]}, 400, "nested too deeply"),
        ("embedder", {"inputs": [INPUT], "parameters": {"top_k": [1]}}, 400, "must be a text, a number"),
        (
            "embedder",
            {"inputs": [{"name": "input_ids", "shape": [1, 1], "datatype": "INT64", "data": [2**70]}]},
            400,
            "too large for INT64",
        ),
    ],
)
def test_mistakes(path, body, status, message, server):
    """Errors have the protocol's shape, and name the field."""
    reply = post(server, f"/v2/models/{path}/infer", body)

    assert reply.status == status
    assert message in reply.json()["error"]


@pytest.mark.parametrize(
    "path",
    ["stats", "embedder/stats", "embedder/versions/1/stats", "embedder/generate", "embedder/trace/setting"],
)
def test_other_routes_of_triton(path, server):
    """Names of Triton's API are no names of models; the refusal has the protocol's shape."""
    reply = send(server, "GET", f"/v2/models/{path}")

    assert reply.status == 404
    assert (
        "GET /metrics" in reply.json()["error"] if path.endswith("stats") else "no such route" in reply.json()["error"]
    )


@pytest.mark.parametrize(
    ("length", "size", "message"),
    [
        ("-1", 6, "bytes of the body"),
        ("9" * 5000, 6, "bytes of the body"),
        (None, 7, "binary_data_size"),
        (None, 5, "1 bytes"),
    ],
)
def test_binary_parts_that_do_not_fit(length, size, message, server):
    """Sizes that contradict the body are refused."""
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": size}}
    header = json.dumps({"inputs": [tensor]}).encode()
    fields = {"inference_header_content_length": length or str(len(header)), "content_type": BINARY}

    reply = post(server, "/v2/models/embedder/infer", header + b"\2\0\0\0ab", **fields)

    assert reply.status == 400
    assert message in reply.json()["error"]
