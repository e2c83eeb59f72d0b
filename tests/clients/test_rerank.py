"""Ranking of documents by the client, the command and jobs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertline import Client, InvalidInput, ModelNotFound, Ranking, Usage
from bertline._convert import MAX_REQUEST_BYTES
from bertline._models import model_of_task
from bertline.operations import OPERATIONS
from bertline.operations import rerank as rerank_operation
from bertline.results import Model
from bertline.testing import FakeServer
from bertline.v1 import encoder_pb2 as pb
from tests.clients.command import Run

QUERY = "Where do owls sleep?"
DOCUMENTS = [f"document {number}" for number in range(11)]


def pairs(ranking: Ranking) -> list[tuple[int, float]]:
    return [(item.document, item.score) for item in ranking.documents]


def test_documents_of_several_requests_are_one_ranking(client: Client, server: FakeServer) -> None:
    """Documents beyond `batch_size` are sent in further requests, and ranked together."""
    with Client(server.target, batch_size=100) as whole:
        (expected,) = whole.rerank([(QUERY, DOCUMENTS)])
    (found,) = client.rerank([(QUERY, DOCUMENTS)])
    (best,) = client.rerank([(QUERY, DOCUMENTS)], top_n=3)

    assert pairs(found) == pairs(expected)
    assert found.order == tuple(item.document for item in found.documents)
    assert sorted(found.order) == list(range(11))
    assert pairs(best) == pairs(expected)[:3]
    assert sorted(len(request.inputs[0].documents) for request in server.requests[1:4]) == [3, 4, 4]


@settings(max_examples=20)
@given(
    counts=st.lists(st.integers(1, 9), max_size=6),
    batch_size=st.integers(1, 12),
    top_n=st.one_of(st.none(), st.integers(1, 4)),
)
def test_any_split_gives_the_same(shared_target: str, counts: list[int], batch_size: int, top_n: int | None) -> None:
    """Rankings and usage do not depend on the size of requests."""
    inputs = [(f"query {number}", DOCUMENTS[:count]) for number, count in enumerate(counts)]
    usages = [Usage(), Usage()]
    with Client(shared_target, batch_size=batch_size) as client:
        found = client.rerank(inputs, top_n=top_n, usage=usages[0])
    with Client(shared_target, batch_size=1000) as client:
        expected = client.rerank(inputs, top_n=top_n, usage=usages[1])

    assert found == expected
    assert usages[0].num_tokens == usages[1].num_tokens
    assert usages[0].num_truncated == usages[1].num_truncated == [0] * len(inputs)


@pytest.fixture(scope="module")
def shared_target() -> Any:
    with FakeServer() as server:
        yield server.target


def test_long_documents_are_split_by_size(client: Client, server: FakeServer) -> None:
    """Requests stay below the size that servers accept, whatever the length of the documents."""
    documents = ["word " * 10_000] * 12
    client.rerank([(QUERY * 2000, documents)])

    assert max(request.ByteSize() for request in server.requests) < MAX_REQUEST_BYTES + 1000
    assert sum(len(item.documents) for request in server.requests for item in request.inputs) == 12


def test_errors_name_the_document(client: Client, server: FakeServer) -> None:
    """Positions of inputs and documents are those of the caller's lists, also in later requests."""
    with pytest.raises(InvalidInput) as caught:
        client.rerank([("a", ["b"]), (QUERY, [*DOCUMENTS[:9], " "])])
    server.refuse("document 8", "too many documents")
    with pytest.raises(InvalidInput, match=r"input 0, documents\[8\]: too many documents"):
        client.rerank([(QUERY, DOCUMENTS)])
    with pytest.raises(InvalidInput, match=r"input 0, documents\[1\]: contains a lone surrogate"):
        client.rerank([("a", ["b", "\ud800"])])
    with pytest.raises(TypeError, match="input 0, documents: expected a list of strings, got str"):
        client.rerank([("a", "b")])  # type: ignore[list-item]

    assert [(item.index, item.field) for item in caught.value.items] == [(1, "documents[9]")]


def test_models_without_a_name() -> None:
    """The client finds the model that a server would choose: one for any query, without a label."""

    def model(name: str, task: str, settings: dict[str, Any] | None = None) -> Model:
        manifest = json.dumps({"settings": settings or {}})
        return Model(name, "1", task, "int8", 128, 0, (), "", manifest)

    fits = OPERATIONS["rerank"].fits
    models = [model("topic", "classification"), model("answer", "spans", {"null_is_trained": True})]

    def chosen(name: str = "") -> str:
        return model_of_task(models, "rerank", name, fits=lambda item: fits(item, is_named=bool(name))).name

    assert (chosen("answer"), chosen("topic")) == ("answer", "topic")
    with pytest.raises(ModelNotFound, match="no model's highest version is of task `rerank`"):
        chosen()
    models.append(model("ranker", "regression"))
    assert chosen() == "ranker"
    models.append(model("similarity", "regression"))
    with pytest.raises(ModelNotFound, match="several models of task `rerank`"):
        chosen()


def test_command(run: Run, target: str) -> None:
    """Arguments are a query and its documents; a row has the ranking, best first."""
    with Client(target) as client:
        (expected,) = client.rerank([(QUERY, DOCUMENTS[:3])], top_n=2)
    (row,) = run("rerank", QUERY, *DOCUMENTS[:3], "--top-n", "2").rows

    assert [item["document"] for item in row["ranking"]] == list(expected.order)
    assert [item["score"] for item in row["ranking"]] == pytest.approx([item.score for item in expected.documents])


def test_job(run: Run, tmp_path: Path) -> None:
    """A file of rows becomes Parquet; rows that the server refuses are rejected by name."""
    rows = [
        {"query": QUERY, "documents": DOCUMENTS, "id": 1},
        {"query": QUERY, "documents": ["a", " "], "id": 2},
        {"query": QUERY, "documents": "text", "id": 3},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    output = tmp_path / "ranked.parquet"
    result = run("rerank", "--input", str(tmp_path / "rows.jsonl"), "--output", str(output), "--keep", "id")

    table = pq.read_table(output).to_pylist()
    assert [row["id"] for row in table] == [1]
    assert sorted(item["document"] for item in table[0]["ranking"]) == list(range(11))
    assert result.code == 3
    rejects = Path(f"{output}.rejects.jsonl").read_text(encoding="utf-8").splitlines()
    reasons = [json.loads(line)["reason"] for line in rejects]
    assert reasons[0].startswith("documents[1]: empty text")
    assert reasons[1] == "`documents` must be a list of strings"


def test_documents_without_a_score_come_last(
    client: Client, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `best_effort`, a query has one request, and the documents that were not scored follow in their order."""
    (plain,) = client.rerank([(QUERY, DOCUMENTS)], best_effort=True)
    assert plain.num_scored == len(DOCUMENTS)
    assert client.rerank([(QUERY, DOCUMENTS)])[0] == Ranking(plain.documents)

    def first_only(reply: pb.RerankReply) -> None:
        for result in reply.results:
            result.num_scored = 1
            others = sorted(item.document for item in result.documents[1:])
            del result.documents[1:]
            result.documents.extend(pb.RankedDocument(document=number) for number in others)

    read = rerank_operation.read_rankings
    monkeypatch.setattr(
        rerank_operation, "read_rankings", lambda reply, **options: (first_only(reply), read(reply, **options))[1]
    )
    (found,) = client.rerank([(QUERY, DOCUMENTS)], best_effort=True)

    assert found.num_scored == 1
    assert sorted(found.order) == list(range(11))
    assert [item.score for item in found.documents[1:]] == [-math.inf] * 10
    assert list(found.order[1:]) == sorted(found.order[1:])
    long = "text " * 40_000  # more than a request of other calls
    assert client.rerank([(QUERY, [*DOCUMENTS, long]), ("b", DOCUMENTS[:1])], best_effort=True)[0].num_scored == 1
