"""Sparse vectors, by the client, the command and jobs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from bertline import AsyncClient, Client, InvalidInput, Usage
from bertline.testing import FakeModel, FakeServer
from bertline.v1 import encoder_pb2 as pb
from tests.clients.command import Run
from tests.clients.wire.plain import plain

TEXT = "an owl sleeps in the old oak , an old owl"


def test_weights_are_ordered(client: Client) -> None:
    """Weights come largest first; `top_k` cuts them, and tokens come on request."""
    (found,) = client.embed_sparse([TEXT])
    (best,) = client.embed_sparse([TEXT], top_k=3, return_tokens=True)

    assert (found.indices.dtype, found.values.dtype) == (np.uint32, np.float32)
    assert len(set(found.indices.tolist())) == len(set(TEXT.split())) == len(found.values)
    assert sorted(found.values, reverse=True) == found.values.tolist()
    assert found.tokens == ()
    np.testing.assert_array_equal(best.indices, found.indices[:3])
    assert len(best.tokens) == 3
    assert {*best.tokens} < {*TEXT.split()}
    assert found.dim > found.indices.max()


def test_many_texts(server: FakeServer) -> None:
    """Texts are split into requests, and come back in order; both clients give the same."""
    texts, usage = [f"owl {number}" for number in range(10)], Usage()
    with Client(server.target, batch_size=3) as client:
        found = client.embed_sparse(texts, input_type="query", truncate=True, usage=usage)

    async def ask() -> object:
        async with AsyncClient(server.target, batch_size=3) as other:
            return await other.embed_sparse(texts, input_type="query", truncate=True)

    assert len(server.requests) == 4
    assert {(request.input_type, request.truncate) for request in server.requests} == {(pb.INPUT_TYPE_QUERY, True)}
    assert len(usage.num_tokens) == 10
    assert plain(asyncio.run(ask())) == plain(found)


def test_mistakes(client: Client, server: FakeServer) -> None:
    """Wrong arguments raise before anything is sent."""
    with pytest.raises(TypeError, match="`texts` must be a list"):
        client.embed_sparse("text")
    with pytest.raises(ValueError, match="unknown input_type: `passage`"):
        client.embed_sparse(["text"], input_type="passage")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="input 1, text: empty text"):
        client.embed_sparse(["text", " "])


def test_command(run: Run, target: str) -> None:
    """A row has the ids and their weights, and with --tokens the tokens."""
    with Client(target) as client:
        (expected,) = client.embed_sparse([TEXT], top_k=4)
    (row,) = run("embed-sparse", "--top-k", "4", TEXT).rows
    (named,) = run("embed-sparse", "--top-k", "4", "--tokens", TEXT).rows

    assert row == {
        "text": TEXT,
        "indices": expected.indices.tolist(),
        "values": pytest.approx(expected.values.tolist()),
    }
    assert len(named["tokens"]) == 4


def test_job(run: Run, tmp_path: Path, target: str) -> None:
    """A job writes columns of lists."""
    (tmp_path / "texts.txt").write_text("an owl\nan oak sleeps\n", encoding="utf-8")
    output = tmp_path / "sparse.parquet"

    result = run("embed-sparse", "-i", str(tmp_path / "texts.txt"), "-o", str(output))

    table = pq.read_table(output)
    with Client(target) as client:
        expected = client.embed_sparse(["an owl", "an oak sleeps"])
    assert result.code == 0
    assert table["indices"].to_pylist() == [item.indices.tolist() for item in expected]
    assert table["values"].to_pylist() == [item.values.tolist() for item in expected]


def test_dimension_of_models() -> None:
    """The description of a model has the size of its vectors."""
    models = [FakeModel(name="a", task="sparse-embedding"), FakeModel(name="b", task="masked-lm")]
    with FakeServer(models) as server, Client(server.target) as client:
        (vector,) = client.embed_sparse(["text"])

        assert (client.model("a").dim, client.model("b").dim) == (vector.dim, 0)
