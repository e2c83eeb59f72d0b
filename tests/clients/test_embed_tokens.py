"""Vectors of tokens, by the client, the command and jobs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from bertline import AsyncClient, Client, InvalidInput, ServerError
from bertline.operations import OPERATIONS
from bertline.testing import FakeModel, FakeServer, vector
from bertline.v1 import encoder_pb2 as pb
from tests.clients.command import Run, parsed
from tests.clients.wire.plain import plain
from tests.serving.models import write_model

TEXT = "An owl, in the oak."


def test_documents_and_queries(client: Client) -> None:
    """Each token has a vector, punctuation only in queries."""
    (document,), (query,) = client.embed_tokens([TEXT]), client.embed_tokens([TEXT], input_type="query")

    assert document.vectors.shape == (7, 8)
    assert query.vectors.shape == (9, 8)
    np.testing.assert_array_equal(document.vectors[2], vector("owl"))
    assert document.offsets is None


def test_formats_and_offsets(client: Client) -> None:
    """float16 halves the bytes; offsets are places in the text."""
    (found,) = client.embed_tokens([TEXT], format="float16", return_offsets=True)

    assert found.vectors.dtype == np.float16
    assert found.offsets is not None
    assert [TEXT[start:end] for start, end in found.offsets] == ["", "An", "owl", "in", "the", "oak", ""]


def test_many_texts(server: FakeServer) -> None:
    """Texts come back in order; both clients give the same."""
    texts = [f"owl {number}" for number in range(5)]
    with Client(server.target, batch_size=2) as client:
        found = client.embed_tokens(texts, input_type="document", truncate=True)

    async def ask() -> object:
        async with AsyncClient(server.target, batch_size=2) as other:
            return await other.embed_tokens(texts, input_type="document", truncate=True)

    assert len(server.requests) == 3
    assert plain(asyncio.run(ask())) == plain(found)
    np.testing.assert_array_equal(found[4].vectors[2], vector("4"))


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (pb.EmbedTokensReply(results=[pb.TokenVectors(vectors=b"1234567")], dim=2), "sent 7 bytes as float32"),
        (pb.EmbedTokensReply(results=[pb.TokenVectors()], dim=2), "sent 0 bytes as float32"),
        (pb.EmbedTokensReply(results=[pb.TokenVectors(vectors=b"\xff" * 8)], dim=2), "a vector is not finite"),
    ],
)
def test_wrong_replies(client: Client, server: FakeServer, reply: pb.EmbedTokensReply, message: str) -> None:
    """Replies that do not fit are refused."""
    server.reply("EmbedTokens", lambda request: reply)
    with pytest.raises(ServerError, match=message):
        client.embed_tokens(["text"])


def test_mistakes(client: Client) -> None:
    """Wrong arguments raise before anything is sent."""
    with pytest.raises(ValueError, match=r"unknown format: `int8` \(one of: float32, float16\)"):
        client.embed_tokens(["text"], format="int8")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="input 1, text: empty text"):
        client.embed_tokens(["text", " "])


def test_ranking() -> None:
    """Models with normalised vectors rank documents, named or not."""
    raw = {"settings": {"normalize": False}}
    models = [
        FakeModel(name="tokens", task="token-embedding"),
        FakeModel(name="raw", task="token-embedding", manifest=raw),
    ]
    with FakeServer(models) as server, Client(server.target) as client:
        assert len(client.rerank([("owl", ["oak", "owl"])])[0].documents) == 2
        with pytest.raises(InvalidInput, match="raw/1 does not do Rerank"):
            client.rerank([("owl", ["oak"])], model="raw")
        fits = [OPERATIONS["rerank"].fits(model, is_named=False) for model in client.models()]

    assert fits == [True, False]


def test_command_and_job(run: Run, tmp_path: Path) -> None:
    """A row has the list of vectors; Parquet has a column of lists of lists."""
    (tmp_path / "texts.txt").write_text("an owl\nan oak sleeps\n", encoding="utf-8")
    output = tmp_path / "tokens.parquet"

    (row,) = run("embed-tokens", "--input-type", "query", "an owl").rows
    result = run("embed-tokens", "-i", str(tmp_path / "texts.txt"), "-o", str(output))

    vectors = pq.read_table(output)["vectors"].to_pylist()
    assert result.code == 0
    assert [len(item) for item in vectors] == [4, 5]
    np.testing.assert_allclose(row["vectors"], vectors[0], rtol=1e-6)
    np.testing.assert_allclose(vectors[0][2], vector("owl"), rtol=1e-6)


def test_long_texts_in_jobs(run: Run, tmp_path: Path) -> None:
    """A job rejects the rows that are too long, with the reason; with --truncate they get the vectors that fit."""
    write_model(tmp_path / "models", "tokens", task="token-embedding")
    (tmp_path / "texts.txt").write_text(f"the cat\n{'the dog ' * 20}\n", encoding="utf-8")
    output = tmp_path / "tokens.parquet"
    arguments = ("embed-tokens", "-i", str(tmp_path / "texts.txt"), "-o", str(output), "--engine", f"{tmp_path}/models")

    refused = run(*arguments)
    (row,) = [parsed(line) for line in (tmp_path / "tokens.parquet.rejects.jsonl").read_text("utf-8").splitlines()]
    cut = run(*arguments, "--truncate", "--force")

    assert (refused.code, cut.code) == (3, 0)
    assert row["row_number"] == 2
    assert "text too long: `43` tokens (maximum `16`); shorten it or set `truncate`" in str(row)
    assert [len(vectors) for vectors in pq.read_table(output)["vectors"].to_pylist()] == [5, 16]
