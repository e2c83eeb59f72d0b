"""TEI's routes, by plain requests and by the client of the Hugging Face hub."""

import threading

import numpy as np
import pytest
from huggingface_hub import InferenceClient

from bertline.v1 import encoder_pb2 as pb
from serving.core.metrics import CODEC
from serving.http_api import tei
from tests.serving.conftest import serve
from tests.serving.http_api.requests import port_of, post, send
from tests.serving.models import write_model

TEXTS = ["the cat sees the old dog", "a bird"]


def test_embed(server, references):
    """Vectors are those of the model, of length 1 by default."""
    expected = np.stack(references["embedder"].predict(TEXTS))
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)

    several, one, raw, cut, named = (
        post(server, path, body)
        for path, body in (
            ("/embed", {"inputs": TEXTS}),
            ("/embed", {"inputs": TEXTS[0], "truncate": True}),
            ("/embed", {"inputs": TEXTS, "normalize": False}),
            ("/embed", {"inputs": TEXTS, "dimensions": 4, "normalize": False}),
            ("/tei/embedder/embed", {"inputs": TEXTS}),
        )
    )

    np.testing.assert_allclose(several.json(), unit, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(one.json(), unit[:1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(raw.json(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(cut.json(), expected[:, :4], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(named.json(), unit, rtol=1e-4, atol=1e-5)


def test_embed_sparse(server, references):
    """Weights of each text are in the order of their ids, with the names of TEI."""
    expected = [
        [
            {"index": index, "value": value}
            for index, value in sorted(zip(item.indices.tolist(), item.values, strict=True))
        ]
        for item in references["sparse"].predict(TEXTS)
    ]

    several, one, prompted = (
        post(server, path, body).json()
        for path, body in (
            ("/embed_sparse", {"inputs": TEXTS}),
            ("/tei/sparse/embed_sparse", {"inputs": TEXTS[0], "truncate": True}),
            ("/embed_sparse", {"inputs": TEXTS, "prompt_name": "query"}),
        )
    )

    def rows(found):
        return [[(item["index"], pytest.approx(item["value"], rel=1e-4)) for item in text] for text in found]

    assert rows(several) == rows(expected)
    assert rows(one) == rows(expected[:1])
    assert prompted != several


def test_embed_all(server, references):
    """Each text has a list of the vectors of its tokens."""
    expected = [item.vectors for item in references["tokens"].predict(TEXTS)]

    several = post(server, "/embed_all", {"inputs": TEXTS}).json()
    one = post(server, "/tei/tokens/embed_all", {"inputs": TEXTS[0], "truncate": True}).json()

    assert list(map(len, several)) == list(map(len, expected))
    for found, vectors in zip([*several, *one], [*expected, expected[0]], strict=True):
        np.testing.assert_allclose(found, vectors, rtol=1e-4, atol=1e-5)


def test_predict(server):
    """A text or a pair gives its labels, a list of lists a list of them; models of numbers have one label."""
    items = [pb.TextInput(text=TEXTS[0]), pb.TextInput(text=TEXTS[0], text_pair=TEXTS[1])]
    expected = [
        [(item.label, pytest.approx(item.score, rel=1e-4)) for item in result.labels]
        for result in server.stub.Classify(pb.ClassifyRequest(inputs=items)).results
    ]

    text, pair, several, numbers = (
        post(server, path, {"inputs": inputs}).json()
        for path, inputs in (
            ("/predict", TEXTS[0]),
            ("/predict", TEXTS),
            ("/predict", [[TEXTS[0]], TEXTS]),
            ("/tei/scorer/predict", [TEXTS]),
        )
    )

    def rows(found):
        return [(item["label"], item["score"]) for item in found]

    assert rows(text) == expected[0]
    assert rows(pair) == expected[1]
    assert [rows(item) for item in several] == expected
    (value,) = server.stub.Regress(pb.RegressRequest(inputs=[items[1]])).values
    assert rows(numbers[0]) == [("LABEL_0", pytest.approx(value, rel=1e-4))]


def test_tokenize_and_decode(server):
    """Tokens have their places in the text; decoding gives the words back."""
    (found,) = post(server, "/tokenize", {"inputs": TEXTS[0]}).json()
    (plain,) = post(server, "/tokenize", {"inputs": [TEXTS[0]], "add_special_tokens": False}).json()

    assert [item for item in found if not item["special"]] == plain
    assert all(item["start"] is item["stop"] is None for item in found if item["special"])
    assert [TEXTS[0][item["start"] : item["stop"]] for item in plain] == TEXTS[0].split()
    ids = [item["id"] for item in found]
    assert post(server, "/decode", {"ids": ids}).json() == [TEXTS[0]]
    assert post(server, "/decode", {"ids": [ids, ids]}).json() == [TEXTS[0]] * 2
    assert len(post(server, "/decode", {"ids": ids, "skip_special_tokens": False}).json()[0]) > len(TEXTS[0])


def test_tokens_are_written_in_blocks(server, monkeypatch):
    """Blocks of tokens make one list for each text, also for texts and requests without any."""
    inputs = {"inputs": [*TEXTS, ""], "add_special_tokens": False}
    whole = post(server, "/tokenize", inputs).json()
    monkeypatch.setattr("serving.http_api.tei.BLOCK_TOKENS", 2)

    assert post(server, "/tokenize", inputs).json() == whole
    assert list(map(len, whole)) == [6, 2, 0]
    assert post(server, "/tokenize", {"inputs": []}).json() == []


@pytest.mark.parametrize(
    ("path", "name", "body"),
    [
        ("/embed", "embed_json", {"inputs": ["the"] * 300}),
        ("/embed_sparse", "sparse_json", {"inputs": ["the"] * 100}),
        ("/embed_all", "token_vectors_json", {"inputs": ["the"] * 100}),
        ("/predict", "classify_json", {"inputs": [["the"]] * 100}),
        ("/tei/scorer/predict", "regress_json", {"inputs": [["the"]] * 300}),
        ("/tei/scorer/rerank", "rerank_json", {"query": "who", "texts": ["the"] * 200}),
        ("/tokenize", "tokenize_json", {"inputs": ["the"] * 100}),
        ("/decode", "_decoded_json", {"ids": [[2, 8, 3]] * 200}),
    ],
)
def test_large_replies_are_written_in_threads(path, name, body, server, monkeypatch):
    """The event loop does not wait while a large reply becomes JSON."""
    write, threads = getattr(tei, name), []

    def record(*arguments):
        threads.append(threading.current_thread().name)
        return write(*arguments)

    monkeypatch.setattr(tei, name, record)

    assert post(server, path, body).status == 200
    assert [thread.partition("_")[0] for thread in threads] == [CODEC]


def test_info(server):
    """The model, its kind and its limits."""
    found, other = send(server, "GET", "/info").json(), send(server, "GET", "/tei/classifier/info").json()

    assert found["model_id"] == "embedder"
    assert found["model_type"] == {"embedding": {"pooling": "mean"}}
    assert found["max_input_length"] > 0
    kinds = {name: send(server, "GET", f"/tei/{name}/info").json()["model_type"] for name in ("sparse", "tokens")}
    assert kinds == {"sparse": {"embedding": {"pooling": "splade"}}, "tokens": {"embedding": {"pooling": "none"}}}
    labels = other["model_type"]["classifier"]
    assert {str(number): label for label, number in labels["label2id"].items()} == labels["id2label"]


def test_client_of_the_hub(server, references):
    """`InferenceClient` works with the address changed."""
    expected = references["embedder"].predict([TEXTS[0]])[0]
    client = InferenceClient(model=f"http://127.0.0.1:{port_of(server)}")

    vector = client.feature_extraction(TEXTS[0], normalize=False, truncate=True)
    best = InferenceClient(model=f"http://127.0.0.1:{port_of(server)}/tei/classifier").text_classification(TEXTS[0])

    np.testing.assert_allclose(np.asarray(vector).reshape(-1), expected, rtol=1e-4, atol=1e-5)
    (result,) = server.stub.Classify(pb.ClassifyRequest(inputs=[pb.TextInput(text=TEXTS[0])])).results
    assert best.label == result.labels[0].label


def test_the_only_model_answers(tmp_path):
    """`POST /` is what the only model is for; its highest version decides, and texts are cut on request only."""
    write_model(tmp_path, "judge", "1", task="classification")
    write_model(tmp_path, "judge", "2", task="regression", truncate=True)
    with serve(tmp_path, http_port=0) as running:
        root, predict = (post(running, path, {"inputs": TEXTS[0]}).json() for path in ("/", "/predict"))
        options = [{}, {"truncate": None}, {"truncate": False}, {"truncate": True}]
        found = [post(running, "/predict", {"inputs": "cat " * 40, **option}).status for option in options]

    assert root == predict
    assert [item["label"] for item in predict] == ["LABEL_0"]
    assert found == [400, 400, 400, 200]


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "message"),
    [
        ("/embed", {}, 400, "Validation", "inputs: missing"),
        ("/embed_sparse", {"inputs": "a", "normalize": True}, 400, "Validation", "normalize: unknown field"),
        ("/predict", {"inputs": ["a", "b", "c"]}, 400, "Validation", "inputs: must be"),
        ("/tei/none/embed", {"inputs": "a"}, 404, "Backend", "`none` does not exist"),
        ("/tei/reader", {"inputs": "a"}, 400, "Validation", "TEI knows"),
        ("/decode", {"ids": [10**9]}, 400, "Validation", "ids[0]"),
        ("/embed", {"inputs": ["a", ""]}, 400, "Validation", "inputs[1]: empty text"),
        ("/predict", {"inputs": ""}, 400, "Validation", "inputs[0]: empty text"),
        ("/predict", {"inputs": ["a", ""]}, 400, "Validation", "inputs[1]: empty text"),
        ("/predict", {"inputs": [["a"], ["a", ""]]}, 400, "Validation", "inputs[1][1]: empty text"),
        ("/tei/classifier/rerank", {"query": "a", "texts": ["b"]}, 400, "Validation", "label: classifier/1"),
        ("/tei/classifier/rerank", {"query": "", "texts": ["b"], "label": "no"}, 400, "Validation", "query: empty"),
        ("/tokenize", {"inputs": ["a", "b" * 1_000_001]}, 400, "Validation", "inputs[1]: text too long"),
    ],
)
def test_mistakes(path, body, status, kind, message, server):
    """Errors have TEI's shape."""
    reply = post(server, path, body)

    assert (reply.status, reply.json()["error_type"]) == (status, kind)
    assert message in reply.json()["error"]
