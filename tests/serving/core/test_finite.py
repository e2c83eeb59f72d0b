"""NaN and infinity in outputs are errors, not answers."""

import re

import grpc
import numpy as np
import pytest

from bertline.v1 import encoder_pb2 as pb
from tasks.registry import TASKS as TASK_TYPES
from tests.serving.conftest import serve
from tests.serving.http_api.requests import post
from tests.serving.models import VOCAB, write_model
from tests.serving.open_inference.messages import infer

BROKEN, SOUND = "the bird [MASK]", "the cat [MASK]"
VALUES = {"nan": np.nan, "negative": -np.inf}
TASKS = tuple(TASK_TYPES)


def spoil(value):
    """Replace the embedding of a word by a value."""

    def edit(weights):
        weights.embedding[VOCAB.index("bird")] = value

    return edit


@pytest.fixture(scope="module", params=VALUES)
def spoilt(request, tmp_path_factory):
    """Server with models of all tasks, whose weights are damaged."""
    models = tmp_path_factory.mktemp("spoilt")
    for task in TASKS:
        write_model(models, task, task=task, edit=spoil(VALUES[request.param]))
    with pytest.MonkeyPatch.context() as patch:  # otherwise the models would not be loaded
        patch.setattr("serving.core.models.Model.run_probes", lambda *_: [])
        with serve(models) as running:
            yield running


def requests(text):
    """Return a request for each RPC."""
    single, words = [pb.TextInput(text=text)], text.split()
    return {
        "Embed": pb.EmbedRequest(texts=[text]),
        "EmbedSparse": pb.EmbedSparseRequest(texts=[text]),
        "EmbedTokens": pb.EmbedTokensRequest(texts=[text]),
        "Classify": pb.ClassifyRequest(inputs=single),
        "Regress": pb.RegressRequest(inputs=single),
        "Choose": pb.ChooseRequest(inputs=[pb.ChooseInput(choices=[text, "cat"])]),
        "Answer": pb.AnswerRequest(inputs=[pb.AnswerInput(question="who", contexts=[text])]),
        "Rerank": pb.RerankRequest(
            model=pb.ModelRef(name="spans"), inputs=[pb.RerankInput(query="who", documents=[text])]
        ),
        "Tag": pb.TagRequest(inputs=[pb.TagInput(words=words)]),
        "FillMask": pb.FillMaskRequest(texts=[text]),
        "ZeroShot": pb.ZeroShotRequest(texts=[text], labels=["the cat", "a dog"], template="{} sees"),
    }


@pytest.mark.parametrize("method", requests(BROKEN))
def test_non_finite_outputs(spoilt, method):
    """A call with non-finite outputs fails with the name of the model, and other texts are answered."""
    call = getattr(spoilt.stub, method)
    error = call.future(requests(BROKEN)[method]).exception()

    assert error.code() is grpc.StatusCode.INTERNAL
    assert re.fullmatch(r"(text|input)s\[0\]: (\S+)/1 \(\2\) returned NaN or infinity: .*", error.details())
    assert call(requests(SOUND)[method]).model.version == "1"


@pytest.mark.parametrize(
    "inputs", [{"text": [BROKEN]}, {"input_ids": [[2, VOCAB.index("bird"), 3]]}], ids=["text", "token ids"]
)
def test_non_finite_outputs_in_the_open_protocol(spoilt, inputs):
    """The Open Inference Protocol returns the same errors."""
    with pytest.raises(grpc.RpcError) as caught:
        infer(spoilt, "embedding", **inputs)

    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert re.match(r"(text|input_ids)\[0\]: embedding/1 \(embedding\) returned NaN", caught.value.details())


@pytest.fixture(scope="module")
def over_http(tmp_path_factory):
    """Server with HTTP, whose models give NaN for one word and huge numbers for another."""

    def edit(weights):
        weights.embedding[VOCAB.index("bird")], weights.embedding[VOCAB.index("cat")] = np.nan, 1e6

    models = tmp_path_factory.mktemp("http")
    for task in ("embedding", "spans"):
        write_model(models, task, task=task, edit=edit)
    with serve(models, http_port=0) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/embeddings", {"input": ["cat", "bird"]}, "input[1]: embedding/1"),
        ("/v1/embeddings", {"input": ["cat"], "output_dtype": "float16"}, "output_dtype: a vector exceeds float16"),
        ("/v2/rerank", {"model": "spans", "query": "who", "documents": ["cat", "bird"]}, "documents: spans/1"),
        ("/embed", {"inputs": ["cat", "bird"], "normalize": False}, "inputs[1]: embedding/1"),
        ("/tei/spans/rerank", {"query": "who", "texts": ["cat", "bird"]}, "texts: spans/1"),
    ],
)
def test_routes_name_their_own_fields(over_http, path, body, message):
    """Errors about outputs name the field of the caller's request, not that of the RPC behind the route."""
    reply = post(over_http, path, body)

    assert reply.status == 500
    assert (reply.error if isinstance(reply.error, str) else reply.error["message"]).startswith(message)
    if path == "/v1/embeddings":
        assert reply.error["param"] == message.partition(":")[0]


def test_zero_vectors(tmp_path):
    """A vector of zeros is an error only if it has to be normalised."""

    def edit(weights):
        weights.embedding[:], weights.types[:] = 0, 0

    write_model(tmp_path, edit=edit)
    with serve(tmp_path) as running:
        error = running.stub.Embed.future(pb.EmbedRequest(texts=["cat"], normalize=True)).exception()
        reply = running.stub.Embed(pb.EmbedRequest(texts=["cat"]))

    assert error.code() is grpc.StatusCode.INTERNAL
    assert "texts[0]: tiny/1 (embedding) returned a vector of zeros, which cannot be normalised" in error.details()
    assert reply.vectors == bytes(4 * 8)


INF = np.inf
ROWS = [
    ("regression", [[1.0]], True),
    ("regression", [[-INF]], False),
    ("classification", [[-INF, 2.0]], True),
    ("classification", [[-INF, -INF]], False),
    ("tagging", [[[1.0, 2.0], [-INF, 0.0]]], True),
    ("tagging", [[[1.0, 2.0], [-INF, -INF]]], False),
    ("multiple-choice", [-INF, 1.0], True),
    ("multiple-choice", [-INF, -INF], False),
    ("spans", [[-INF, 1.0, -INF]], True),
    ("spans", [[-INF, -INF]], False),
]


@pytest.mark.parametrize(("task", "arrays", "is_sound"), ROWS)
def test_negative_infinity(task, arrays, is_sound):
    """Negative infinity is a score of 0 among finite logits; alone, or in a regression, it is an error."""
    kind = TASK_TYPES[task]
    outputs = [{"logits": np.array(array, np.float32)} for array in arrays]

    assert bool(kind.outputs_problem(object.__new__(kind), outputs)) is not is_sound
