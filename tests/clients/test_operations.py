"""Sparse vectors, vectors of tokens, and labels of a request: by the client, the command and jobs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from bertline import AsyncClient, Client, InvalidInput, ServerError, Usage
from bertline.operations import OPERATIONS
from bertline.testing import FakeModel, FakeServer, vector
from bertline.v1 import encoder_pb2 as pb
from tests.clients.command import Run
from tests.clients.wire.plain import plain

SPARSE_TEXT = "an owl sleeps in the old oak , an old owl"
TOKENS_TEXT = "An owl, in the oak."
LABELS = ["sports", "politics", "weather"]
LABEL_FLAGS = [part for label in LABELS for part in ("--label", label)]


@pytest.mark.parametrize(
    ("method", "options"), [("embed_sparse", {"input_type": "query"}), ("embed_tokens", {"input_type": "document"})]
)
def test_many_texts(server: FakeServer, method: str, options: dict[str, str]) -> None:
    """Texts are split into requests, and come back in order; both clients give the same."""
    texts, usage = [f"owl {number}" for number in range(10)], Usage()
    with Client(server.target, batch_size=3) as client:
        found = getattr(client, method)(texts, truncate=True, usage=usage, **options)
        alone = [getattr(client, method)([text], truncate=True, **options)[0] for text in texts]

    async def ask() -> object:
        async with AsyncClient(server.target, batch_size=3) as other:
            return await getattr(other, method)(texts, truncate=True, **options)

    input_type = pb.InputType.Value(f"INPUT_TYPE_{options['input_type'].upper()}")
    assert {(request.input_type, request.truncate) for request in server.requests} == {(input_type, True)}
    assert len(server.requests) == 4 + 10
    assert len(usage.num_tokens) == 10
    assert plain(asyncio.run(ask())) == plain(found) == plain(alone)


def test_sparse_weights_are_ordered(client: Client) -> None:
    """Weights come largest first; `top_k` cuts them, and tokens come on request."""
    (found,) = client.embed_sparse([SPARSE_TEXT])
    (best,) = client.embed_sparse([SPARSE_TEXT], top_k=3, return_tokens=True)

    assert (found.indices.dtype, found.values.dtype) == (np.uint32, np.float32)
    assert len(set(found.indices.tolist())) == len(set(SPARSE_TEXT.split())) == len(found.values)
    assert sorted(found.values, reverse=True) == found.values.tolist()
    assert found.tokens == ()
    np.testing.assert_array_equal(best.indices, found.indices[:3])
    assert len(best.tokens) == 3
    assert {*best.tokens} < {*SPARSE_TEXT.split()}
    assert found.dim > found.indices.max()


def test_sparse_command_and_job(run: Run, tmp_path: Path, target: str) -> None:
    """A row has the ids and their weights, and with --tokens the tokens; Parquet has columns of lists."""
    (tmp_path / "texts.txt").write_text("an owl\nan oak sleeps\n", encoding="utf-8")
    with Client(target) as client:
        (first,), others = client.embed_sparse([SPARSE_TEXT], top_k=4), client.embed_sparse(["an owl", "an oak sleeps"])

    (row,) = run("embed-sparse", "--top-k", "4", SPARSE_TEXT).rows
    (named,) = run("embed-sparse", "--top-k", "4", "--tokens", SPARSE_TEXT).rows
    assert run("embed-sparse", "-i", f"{tmp_path}/texts.txt", "-o", f"{tmp_path}/sparse.parquet").code == 0

    table = pq.read_table(tmp_path / "sparse.parquet")
    values = pytest.approx(first.values.tolist())
    assert row == {"text": SPARSE_TEXT, "indices": first.indices.tolist(), "values": values}
    assert len(named["tokens"]) == 4
    assert table["indices"].to_pylist() == [item.indices.tolist() for item in others]
    assert table["values"].to_pylist() == [item.values.tolist() for item in others]


def test_dimension_of_sparse_models() -> None:
    """The description of a model has the size of its vectors."""
    models = [FakeModel(name="a", task="sparse-embedding"), FakeModel(name="b", task="masked-lm")]
    with FakeServer(models) as server, Client(server.target) as client:
        (found,) = client.embed_sparse(["text"])

        assert (client.model("a").dim, client.model("b").dim) == (found.dim, 0)


def test_vectors_of_documents_and_queries(client: Client) -> None:
    """Each token has a vector, punctuation only in queries; float16 halves the bytes, and offsets are places."""
    (document,), (query,) = client.embed_tokens([TOKENS_TEXT]), client.embed_tokens([TOKENS_TEXT], input_type="query")
    (short,) = client.embed_tokens([TOKENS_TEXT], format="float16", return_offsets=True)

    assert document.vectors.shape == (7, 8)
    assert query.vectors.shape == (9, 8)
    np.testing.assert_array_equal(document.vectors[2], vector("owl"))
    assert document.offsets is None
    assert short.vectors.dtype == np.float16
    assert short.offsets is not None
    assert [TOKENS_TEXT[start:end] for start, end in short.offsets] == ["", "An", "owl", "in", "the", "oak", ""]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (pb.TokenVectors(vectors=b"1234567"), "sent 7 bytes as float32"),
        (pb.TokenVectors(), "sent 0 bytes as float32"),
        (pb.TokenVectors(vectors=b"\xff" * 8), "a vector is not finite"),
    ],
)
def test_wrong_vectors_of_tokens(client: Client, server: FakeServer, result: pb.TokenVectors, message: str) -> None:
    """Replies that do not fit are refused."""
    server.reply("EmbedTokens", lambda request: pb.EmbedTokensReply(results=[result], dim=2))
    with pytest.raises(ServerError, match=message):
        client.embed_tokens(["text"])


def test_models_for_vectors_of_tokens_rank() -> None:
    """Models with normalised vectors rank documents, named or not."""
    raw = FakeModel(name="raw", task="token-embedding", manifest={"settings": {"normalize": False}})
    with FakeServer([FakeModel(name="tokens", task="token-embedding"), raw]) as server, Client(server.target) as client:
        assert len(client.rerank([("owl", ["oak", "owl"])])[0].documents) == 2
        with pytest.raises(InvalidInput, match="raw/1 does not do Rerank"):
            client.rerank([("owl", ["oak"])], model="raw")
        fits = [OPERATIONS["rerank"].fits(model, is_named=False) for model in client.models()]

    assert fits == [True, False]


def test_vectors_of_tokens_by_command_and_job(run: Run, tmp_path: Path) -> None:
    """A row has the list of vectors; Parquet has a column of lists of lists."""
    (tmp_path / "texts.txt").write_text("an owl\nan oak sleeps\n", encoding="utf-8")

    (row,) = run("embed-tokens", "--input-type", "query", "an owl").rows
    assert run("embed-tokens", "-i", f"{tmp_path}/texts.txt", "-o", f"{tmp_path}/tokens.parquet").code == 0

    vectors = pq.read_table(tmp_path / "tokens.parquet")["vectors"].to_pylist()
    assert [len(item) for item in vectors] == [4, 5]
    np.testing.assert_allclose(row["vectors"], vectors[0], rtol=1e-6)
    np.testing.assert_allclose(vectors[0][2], vector("owl"), rtol=1e-6)


def test_labels_of_a_request_fit_texts(client: Client) -> None:
    """One label is selected, or any number; scores are in order."""
    one, other = client.zero_shot(["It rains.", "A goal."], LABELS)
    (several,) = client.zero_shot(["It rains."], LABELS, multi_label=True)

    assert sorted(item.label for item in one.labels) == sorted(LABELS)
    assert sum(item.score for item in other.labels) == pytest.approx(1)
    assert (one.multi_label, several.multi_label) == (False, True)
    assert one.selected == (one.label,)
    assert several.selected == tuple(item.label for item in several.labels if item.score >= 0.5)


def test_requests_hold_few_pairs_of_text_and_label(client: Client, server: FakeServer) -> None:
    """Many labels leave room for few texts in a request; options reach the server in each, errors name the text."""
    labels = [f"label {number}" for number in range(400)]
    usage = Usage()
    found = client.zero_shot(["a", "b", "c"], labels, template="It is {}.", top_k=2, truncate=True, usage=usage)

    assert sorted(len(request.texts) for request in server.requests) == [1, 2]
    assert {(request.template, request.top_k, len(request.labels)) for request in server.requests} == {
        ("It is {}.", 2, 400)
    }
    assert [len(item.labels) for item in found] == [2, 2, 2]
    assert len(usage.num_tokens) == 3
    with pytest.raises(InvalidInput, match="input 5, text: "):
        client.zero_shot(["a"] * 5 + [" "], labels)


@pytest.mark.parametrize("flags", [[], ["--multi-label"]])
def test_labels_of_a_request_by_command_and_job(run: Run, target: str, tmp_path: Path, flags: list[str]) -> None:
    """`--label` names the labels; rows are as of `classify`, with selected labels if there may be any number."""
    (tmp_path / "texts.jsonl").write_text('{"text": "A goal."}\n{"text": "It rains."}\n', encoding="utf-8")
    output = tmp_path / "labels.parquet"
    with Client(target) as client:
        (expected,) = client.zero_shot(["A goal."], LABELS, multi_label=bool(flags))

    (row,) = run("zero-shot", *LABEL_FLAGS, *flags, "A goal.").rows
    assert run("zero-shot", *LABEL_FLAGS, *flags, "-i", f"{tmp_path}/texts.jsonl", "-o", str(output)).code == 0

    table = pq.read_table(output)
    found: list[dict[str, Any]] = table["labels"][0].as_py()
    assert row["label"] == expected.label
    assert [item["label"] for item in row["labels"]] == [item.label for item in expected.labels]
    assert ("selected" in row) == ("selected" in table.column_names) == bool(flags)
    assert [item["label"] for item in found] == [item["label"] for item in row["labels"]]
    assert json.loads(table.schema.metadata[b"bertline"])["options"]["labels"] == LABELS
