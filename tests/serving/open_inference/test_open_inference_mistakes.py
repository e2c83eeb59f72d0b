import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.open_inference import token_ids
from serving.open_inference.v2 import service_pb2 as pb
from tests.serving.open_inference.messages import call, infer, infer_request, stub, with_lengths

IDS = np.array([[2, 8, 9, 3], [2, 8, 3, 0]])
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])


def text_request(**fields):
    """Return a valid request for two texts, with some fields of its input changed."""
    request = infer_request("embedder", text=["cat", "dog"])
    for name, value in fields.items():
        setattr(request.inputs[0], name, value) if isinstance(value, str) else _replace(request.inputs[0], name, value)
    return request


def _replace(message, name, values):
    message.ClearField(name)
    getattr(message, name).extend(values)
    return message


def with_raw(*raw, model="embedder", **inputs):
    request = infer_request(model, **(inputs or {"text": ["cat", "dog"]}))
    return _replace(request, "raw_input_contents", raw)


def with_parameter(**fields):
    """Return a valid request with a parameter on its input or output."""
    request = infer_request("embedder", text=["cat"], outputs=["embedding"])
    for name, where in fields.items():
        getattr(request, where)[0].parameters[name].int64_param = 1
    return request


def both_contents():
    request = infer_request("embedder", text=["cat"])
    request.inputs[0].contents.bytes_contents.append(b"cat")
    return request


MISTAKES = {
    "no model": (
        infer_request("", text=["cat"]),
        "model_name: empty; name a model (loaded: chooser, classifier, embedder",
    ),
    "missing input": (infer_request("reader", question=["who"]), "inputs: `context` is missing"),
    "unknown input": (infer_request("embedder", image=["a\nb"]), "inputs[0].name: unknown: `image` (this model takes"),
    "texts and ids": (
        infer_request("embedder", text=["a"], input_ids=IDS),
        "inputs: texts and token ids together; send one",
    ),
    "rank": (infer_request("embedder", text=[["a", "b"]]), "inputs[0].shape: `text` must have the shape [n]: `[1, 2]`"),
    "negative": (text_request(shape=[-2]), f"inputs[0].shape: an axis must be from 0 to {2**31 - 1}: `[-2]`"),
    "shape": (text_request(shape=[3]), "raw_input_contents[0]: `2` elements, but the shape [3] needs 3"),
    "large shape": (text_request(shape=[2**31 - 1]), f"too many inputs: `{2**31 - 1}` (maximum `8192`)"),
    "many axes": (text_request(shape=[127] * 30_000), "inputs[0].shape: too many axes: `30000` (maximum `2`)"),
    "cut off": (with_raw(with_lengths([b"cat", b"dog"])[:-1]), "raw_input_contents[0]: element 1 is cut off"),
    "both contents": (both_contents(), "inputs[0].contents: not together with raw_input_contents"),
    "not UTF-8": (with_raw(with_lengths([b"cat", b"\xff"])), "text[1]: not UTF-8"),
    "numbers differ": (
        infer_request("reader", question=["who"], context=["cat", "dog"]),
        "inputs: different numbers of elements: 1 of `question`, 2 of `context`",
    ),
    "unknown output": (
        infer_request("embedder", text=["cat"], outputs=["logits"]),
        "outputs[0].name: unknown: `logits` (these inputs give embedding)",
    ),
    "unknown parameter": (
        infer_request("embedder", text=["cat"], parameters={"top_k": 1}),
        "parameters: unknown: `top_k` (parameters for these inputs: input_type, normalize, prompt_name, truncate)",
    ),
    "input type": (
        infer_request("embedder", text=["cat"], parameters={"input_type": "question"}),
        "parameters[input_type]: must be query or document: `question`",
    ),
    "top_k": (infer_request("filler", text=["[MASK]"], parameters={"top_k": 0}), "parameters[top_k]: must be a whole"),
    "shared memory": (with_parameter(shared_memory_region="inputs"), "inputs[0].parameters: unknown: `shared_memory_"),
    "no rows": (infer_request("embedder", input_ids=IDS[:0]), "input_ids: empty: shape [0, 4]"),
    "vocabulary": (infer_request("embedder", input_ids=IDS + 22), "input_ids[0][1]: must be from 0 to 27: `30`"),
    "shapes differ": (
        infer_request("embedder", input_ids=IDS, attention_mask=MASK[:1]),
        "attention_mask: shape `[1, 4]` differs from that of input_ids, `[2, 4]`",
    ),
    "mask with a hole": (
        infer_request("embedder", input_ids=IDS, attention_mask=np.array([[1, 1, 1, 1], [1, 0, 1, 0]])),
        "attention_mask[1]: must be ones and then zeros",
    ),
    "long row": (
        infer_request("embedder", input_ids=np.full((1, 33), 8)),
        "input_ids[0]: too long: `33` tokens (maximum `32`)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_invalid_requests_name_the_field(server, mistake):
    """Invalid requests are INVALID_ARGUMENT, with one line that names the field."""
    request, message = MISTAKES[mistake]
    with pytest.raises(grpc.RpcError) as caught:
        stub(server, "ModelInfer")(request, timeout=20)

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert message in caught.value.details()
    assert "\n" not in caught.value.details()


@pytest.mark.parametrize("method", ["ModelMetadata", "ModelConfig"])
def test_unknown_model(server, method):
    """Unknown models are NOT_FOUND, and an empty name is INVALID_ARGUMENT."""
    for name, code in {"nobody": grpc.StatusCode.NOT_FOUND, "": grpc.StatusCode.INVALID_ARGUMENT}.items():
        with pytest.raises(grpc.RpcError) as caught:
            call(server, method, name=name)

        assert caught.value.code() is code
        assert "embedder" in caught.value.details()


def test_repository(server):
    """Repository names other than the empty one are refused."""
    with pytest.raises(grpc.RpcError, match="repository_name"):
        call(server, "RepositoryIndex", repository_name="mine")


def test_outputs_too_large(server, monkeypatch):
    """Logits that would not fit into a response are refused before they are computed."""
    monkeypatch.setattr(token_ids, "MAX_OUTPUT_BYTES", 2**20)
    ids = np.full((1000, 20), 8)

    with pytest.raises(grpc.RpcError, match=r"the outputs would have 2 MiB \(maximum 1 MiB\)"):
        infer(server, "filler", input_ids=ids)
    assert infer(server, "embedder", input_ids=ids)["sentence_embedding"].shape == (1000, 8)


tensors = st.tuples(
    st.sampled_from(["text", "text_pair", "question", "context", "input_ids", "attention_mask", "token_type_ids"]),
    st.sampled_from(["BYTES", "INT32", "INT64", "FP32", "BOOL", ""]),
    st.lists(st.integers(-1, 4) | st.sampled_from([2**62, -(2**63)]), max_size=3)
    | st.sampled_from([[127] * 30_000, [1] + [2**62] * 300]),
    st.binary(max_size=40)
    | st.lists(st.binary(max_size=6), max_size=4).map(with_lengths)
    | st.lists(st.integers(-2, 40), max_size=8).map(lambda values: np.array(values, "<i8").tobytes())
    | st.lists(st.integers(0, 27), max_size=8).map(lambda values: np.array(values, "<i4").tobytes()),
)


@settings(max_examples=150)
@given(
    model=st.sampled_from(["embedder", "classifier", "reader", "filler"]),
    inputs=st.lists(tensors, max_size=3),
    extra=st.lists(st.binary(max_size=8), max_size=1),
    names=st.lists(st.sampled_from(["embedding", "logits", "label", "answer", "x"]), max_size=2),
)
def test_random_contents(server, model, inputs, extra, names):
    """Calls with random contents are answered or refused, and never INTERNAL."""
    request = pb.ModelInferRequest(model_name=model, outputs=[{"name": name} for name in names])
    for name, datatype, shape, raw in inputs:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(raw)
    request.raw_input_contents.extend(extra)
    outcome = stub(server, "ModelInfer").future(request, timeout=20)

    assert outcome.code() in {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT}
