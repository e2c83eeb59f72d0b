"""Checks with tritonclient, in separate processes: it registers messages with the same names as ours."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from bertline.v1 import encoder_pb2 as pb
from tests.serving.reliability import vectors

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "other-clients.md"
TEXTS = ["the cat sees the dog .", "river"]
SCRIPT = """
import asyncio, json, sys
import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio
from tritonclient.utils import InferenceServerException

def tensor(name, values, datatype="BYTES"):
    array = np.array(values, dtype=object if datatype == "BYTES" else np.int64)
    item = triton.InferInput(name, array.shape, datatype)
    return item.set_data_from_numpy(array)

target, texts = sys.argv[1], ["the cat sees the dog .", "river"]
client = triton.InferenceServerClient(target)

ids = [[2, 8, 9, 3]]
embed = lambda result: result.as_numpy("embedding").tolist()
answers = [client.infer("embedder", [tensor("text", texts)])]
async def ask():
    async with tritonclient.grpc.aio.InferenceServerClient(target) as asynchronous:
        assert await asynchronous.is_server_ready()
        return await asynchronous.infer("embedder", [tensor("text", texts)], request_id="7")
answers.append(asyncio.run(ask()))
assert answers[1].get_response().id == "7"
raw = client.infer("embedder", [tensor("input_ids", ids, "INT64")]).as_numpy("sentence_embedding").tolist()
print(json.dumps([*map(embed, answers), raw]))

outputs = [triton.InferRequestedOutput(name) for name in ("has_answer", "answer", "start", "end")]
context = "the cat sees the old dog near the river"
spans = client.infer(
    "reader", [tensor("question", ["who"]), tensor("context", [context])], outputs=outputs, parameters={"top_k": 2}
)
assert spans.as_numpy("score") is None
answers = [answer.decode() for answer in spans.as_numpy("answer")[0]]
places = zip(spans.as_numpy("start")[0], spans.as_numpy("end")[0])
assert answers == [context[start:end] for start, end in places], answers
assert spans.as_numpy("has_answer").dtype == bool
labels = client.infer("classifier", [tensor("text", texts), tensor("text_pair", texts)])
assert labels.as_numpy("label").shape == labels.as_numpy("score").shape == (2, 3)
filled = client.infer("filler", [tensor("text", ["the [MASK] sees"])], compression_algorithm="gzip")
assert filled.as_numpy("token").shape == (1, 5)

assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("reader", "1")
assert not client.is_model_ready("nobody")
assert client.get_server_metadata(as_json=True)["name"] == "bertline"
metadata = client.get_model_metadata("embedder", as_json=True)
assert metadata["inputs"][0] == {"name": "text", "datatype": "BYTES", "shape": ["-1"]}, metadata
config = client.get_model_config("embedder").config
assert (config.backend, config.max_batch_size, config.input[0].data_type) == ("onnxruntime", 0, 13)
assert config.input[0].optional and list(config.output[0].dims) == [-1, 8]
index = client.get_model_repository_index().models
assert ("reader", "1", "READY") in [(item.name, item.version, item.state) for item in index]

def refuse(status, message, call):
    try:
        call()
    except InferenceServerException as error:
        assert error.status() == f"StatusCode.{status}" and message in error.message(), error
    else:
        raise AssertionError(status)

cat = [tensor("text", ["cat"])]
refuse("INVALID_ARGUMENT", "text[1]: empty text", lambda: client.infer("embedder", [tensor("text", ["cat", ""])]))
refuse("NOT_FOUND", "does not exist", lambda: client.infer("nobody", cat))
refuse("INVALID_ARGUMENT", "unknown: `timeout`", lambda: client.infer("embedder", cat, timeout=9))
refuse("UNIMPLEMENTED", "", lambda: client.load_model("reader"))
"""


def run(server, script):
    """Run a script with the address of the server as argument; return its output."""
    command = [sys.executable, "-c", script, server.target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def vectors_of(server, texts):
    return vectors(server.stub.Embed(pb.EmbedRequest(texts=texts)))


def test_client_of_triton(server):
    """Texts and token ids return the vectors of Embed, to the synchronous and the asyncio client.

    Strings, numbers and booleans of other tasks become numpy arrays, in the requested selection and order. Health,
    metadata and configuration requests are answered; errors have their status and message.
    """
    synchronous, asynchronous, raw = json.loads(run(server, SCRIPT))

    np.testing.assert_array_equal(np.array(synchronous, np.float32), vectors_of(server, TEXTS))
    assert synchronous == asynchronous
    np.testing.assert_allclose(raw, vectors_of(server, ["the cat"]), rtol=1e-6)


def test_example_of_the_guide_runs(server):
    """The example in docs/guides/other-clients.md runs, with another address and model."""
    section = PAGE.read_text("utf-8")
    (example,) = (code for code in re.findall(r"```python\n(.*?)```", section, re.DOTALL) if "tritonclient" in code)

    printed = run(server, example.replace("localhost:50051", server.target).replace("my-model", "embedder"))

    assert "('text', 'BYTES', [-1])" in printed
    assert printed.endswith("(2, 8)\n")
