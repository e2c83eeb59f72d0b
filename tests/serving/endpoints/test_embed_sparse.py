"""EmbedSparse: weights of tokens, largest first."""

from dataclasses import replace

import grpc
import numpy as np
import pytest

from bertline.v1 import encoder_pb2 as pb
from serving.endpoints import embed_sparse
from tests.serving.conftest import serve
from tests.serving.models import write_model

TEXTS = ["the cat sees the old dog .", "a small bird"]


def ask(server, texts=TEXTS, **options):
    return server.stub.EmbedSparse(pb.EmbedSparseRequest(texts=texts, **options))


def test_weights(server, references):
    """Replies have the weights of the task, largest first, with tokens on request; the only fitting model answers."""
    reply, named = ask(server), ask(server, return_tokens=True)

    reference = references["sparse"]
    tokenizer = reference.task.tokenizer
    for expected, result, with_tokens in zip(reference.predict(TEXTS), reply.results, named.results, strict=True):
        assert list(result.indices) == expected.indices.tolist()
        assert list(result.values) == pytest.approx(expected.values.tolist(), rel=1e-4)
        assert sorted(result.values, reverse=True) == list(result.values)
        assert list(with_tokens.tokens) == [tokenizer.token(index) for index in result.indices]
        assert not result.tokens
    assert (reply.model.name, reply.dim) == ("sparse", tokenizer.vocab_size)
    assert list(reply.num_tokens) == [9, 5]
    assert list(reply.num_truncated) == [0, 0]


def test_weights_do_not_depend_on_the_batch(server):
    """A short text in a batch with a long one has the weights that it has alone."""
    (alone,) = ask(server, [TEXTS[1]]).results
    beside = ask(server, ["the cat sees " * 9, TEXTS[1]]).results[1]

    assert list(beside.indices) == list(alone.indices)
    np.testing.assert_allclose(beside.values, alone.values, rtol=1e-5)


def test_top_k(server, tmp_path):
    """A reply has the largest `top_k` weights, or as many as the manifest specifies."""
    every = ask(server).results
    cut = ask(server, top_k=3).results
    settings = {"max_seq_length": 32, "top_k": 2}
    reference = write_model(tmp_path, "sparse", task="sparse-embedding", seed=7)
    write_model(
        tmp_path / "cut",
        "sparse",
        task="sparse-embedding",
        seed=7,
        settings=replace(reference.task.settings, **settings),
    )
    with serve(tmp_path / "cut") as other:
        fewer, all_of_them = ask(other).results, ask(other, top_k=30).results

    for kept, result in ((3, cut), (2, fewer)):
        assert [list(item.indices) for item in result] == [list(item.indices[:kept]) for item in every]
    assert [list(item.indices) for item in all_of_them] == [list(item.indices) for item in every]


def test_prompts(server, references):
    """`prompt_name` and `input_type` put the model's prompt before each text."""
    expected = references["sparse"].predict(TEXTS, prompt_name="query")

    for options in ({"prompt_name": "query"}, {"input_type": "INPUT_TYPE_QUERY"}):
        reply = ask(server, **options)
        assert [list(item.indices) for item in reply.results] == [item.indices.tolist() for item in expected]
    assert ask(server, input_type="INPUT_TYPE_DOCUMENT").results == ask(server).results


def test_replies_are_bounded(server, monkeypatch):
    """A reply that could hold too many weights is refused before anything is computed."""
    monkeypatch.setattr(embed_sparse, "MAX_WEIGHTS", 60)
    ask(server)
    with pytest.raises(grpc.RpcError, match=r"too many weights requested: `84` \(maximum `60`\)"):
        ask(server, ["a"] * 3)

    ask(server, ["a"] * 3, top_k=20)
