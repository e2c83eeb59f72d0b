"""Routes of rerankers, by plain requests and by Cohere's client."""

import time

import cohere
import httpx
import pytest

from bertline.v1 import encoder_pb2 as pb
from serving.core.models import Model
from tests.serving.http_api.requests import port_of, post

QUERY = "who sees the dog"
DOCUMENTS = ["a river", "the cat sees the old dog", "the bird likes the tree"]


@pytest.fixture(scope="module")
def ranked(server):
    """Documents ranked over gRPC: (number, score), best first."""
    inputs = [pb.RerankInput(query=QUERY, documents=DOCUMENTS)]
    reply = server.stub.Rerank(pb.RerankRequest(model=pb.ModelRef(name="scorer"), inputs=inputs))
    return [(item.document, pytest.approx(item.score, rel=1e-6)) for item in reply.results[0].documents]


def ask(server, path="/v1/rerank", **changes):
    return post(server, path, {"model": "scorer", "query": QUERY, "documents": DOCUMENTS} | changes)


@pytest.mark.parametrize(("path", "version"), [("/v1/rerank", "1"), ("/v2/rerank", "2")])
def test_rerank(server, ranked, path, version):
    """Indices and scores are those of the RPC; the reply counts tokens as Cohere's and Jina's do."""
    found = ask(server, path).json()

    assert [(item["index"], item["relevance_score"]) for item in found["results"]] == ranked
    assert found["model"] == "scorer"
    assert found["usage"]["total_tokens"] == found["meta"]["tokens"]["input_tokens"] > 0
    assert found["meta"]["api_version"] == {"version": version}
    assert found["id"]


def test_documents_are_returned(server, ranked):
    """Objects with `text` are ranked by it, and come back whole; texts come back as such objects."""
    objects = [{"text": text, "id": number} for number, text in enumerate(DOCUMENTS)]

    of_objects = ask(server, documents=objects, return_documents=True, top_n=2).json()["results"]
    of_texts = ask(server, return_documents=True, top_n=1).json()["results"]

    assert [item["document"] for item in of_objects] == [objects[number] for number, _ in ranked[:2]]
    assert of_texts[0]["document"] == {"text": DOCUMENTS[ranked[0][0]]}


def test_the_rpc_has_the_same_path(server, ranked):
    """A request with `inputs` is one of the RPC."""
    found = ask(server, query=None)
    rpc = post(
        server, "/v1/rerank", {"model": {"name": "scorer"}, "inputs": [{"query": QUERY, "documents": DOCUMENTS}]}
    )

    assert found.status == 400
    assert [(item["document"], item["score"]) for item in rpc.json()["results"][0]["documents"]] == ranked


@pytest.mark.parametrize("make", [cohere.Client, cohere.ClientV2])
def test_client_of_cohere(server, ranked, make):
    """Both of Cohere's clients work with the address changed."""
    with httpx.Client() as http:
        client = make("any", base_url=f"http://127.0.0.1:{port_of(server)}", httpx_client=http)

        found = client.rerank(model="scorer", query=QUERY, documents=DOCUMENTS, top_n=2)
        with pytest.raises(cohere.core.ApiError) as refused:
            client.rerank(model="none", query=QUERY, documents=DOCUMENTS)

    assert [(item.index, item.relevance_score) for item in found.results] == ranked[:2]
    assert refused.value.status_code == 404
    assert "model `none` does not exist" in refused.value.body["message"]


def test_classifications_need_a_label(server):
    """The field `label` names the label that means that a document fits."""
    without, given = ask(server, model="classifier"), ask(server, model="classifier", label="entailment")

    assert (without.status, without.json()["error"]["violations"][0]["field"]) == (400, "label")
    assert all(0 < item["relevance_score"] < 1 for item in given.json()["results"])


@pytest.mark.parametrize(
    ("path", "changes", "message"),
    [
        (
            "/v1/rerank",
            {"documents": ["a", {"title": "b"}]},
            "document 1 is neither a text nor an object with the field",
        ),
        ("/v1/rerank", {"documents": [{"text": "a", "id": 2**70}]}, "document 0 holds an integer beyond 64 bits"),
        ("/v2/rerank", {"query": "the dog " * 20}, "query: text too long"),
        ("/v2/rerank", {"max_tokens_per_doc": 10}, "max_tokens_per_doc: not supported here; leave it out"),
        ("/v1/rerank", {"documents": ["cat"] * 10_000}, "too many documents: `10000` (maximum `8192`)"),
    ],
)
def test_wrong_requests(server, path, changes, message):
    """Errors have the shape of Cohere's, and name the field of the request."""
    reply = ask(server, path, **changes)

    assert reply.status == 400
    assert message in reply.json()["message"]


@pytest.mark.parametrize(("path", "documents"), [("/v2/rerank", "documents"), ("/rerank", "texts")])
def test_best_effort(server, monkeypatch, path, documents):
    """Documents without a score are marked, and come last in their order; without haste, none is."""
    body = {"model": "scorer", "query": QUERY, documents: DOCUMENTS * 40, "best_effort": True}
    body = body if path == "/v2/rerank" else {name: value for name, value in body.items() if name != "model"}

    def ask_within(seconds):
        place = path if path == "/v2/rerank" else "/tei/scorer/rerank"
        found = post(server, place, body, **{"x-request-timeout-s": seconds}).json()
        return found["results"] if path == "/v2/rerank" else found

    assert all("scored" not in item for item in ask_within("30"))
    compute = Model.compute
    monkeypatch.setattr(Model, "compute", lambda *items: (time.sleep(0.05), compute(*items))[1])
    found = ask_within("0.3")

    others = [item["index"] for item in found if item.get("scored") is False]
    assert 0 < len(others) < len(found) == 120
    assert others == sorted(others) == [item["index"] for item in found[-len(others) :]]


def test_long_queries_are_cut_on_request(server):
    """`truncate` cuts a query."""
    assert ask(server, query="the dog " * 20, truncate=True).status == 200


def test_tei(server, ranked):
    """TEI's route, and the one by the task, rank for a named model, with raw scores and texts on request."""
    body = {"query": QUERY, "texts": DOCUMENTS}
    paths = ("/tei/scorer/rerank", "/tei/scorer")

    found = [post(server, path, body | {"raw_scores": True}).json() for path in paths]
    texts = post(server, paths[0], body | {"return_text": True}).json()
    wrong = post(server, paths[0], {"query": QUERY, "texts": ["cat", ""]})

    assert [[(item["index"], item["score"]) for item in one] for one in found] == [ranked, ranked]
    assert [item["text"] for item in texts] == [DOCUMENTS[number] for number, _ in ranked]
    assert (wrong.status, wrong.json()["error"]) == (400, "texts[1]: empty text; it needs at least one word")
