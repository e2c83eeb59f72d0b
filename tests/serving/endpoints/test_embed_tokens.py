"""EmbedTokens: a vector for each token; Rerank by MaxSim."""

from dataclasses import replace

import grpc
import numpy as np
import pytest

from bertline.v1 import encoder_pb2 as pb
from serving.endpoints import embed_tokens
from tasks.ranking import RankingExample, create_ranking
from tests.serving.conftest import serve
from tests.serving.models import write_model

TEXTS = ["the cat sees the old dog .", "a small bird"]
LONG = "the cat sees the old dog near the river . " * 4


def ask(server, texts=TEXTS, **options):
    return server.stub.EmbedTokens(pb.EmbedTokensRequest(texts=texts, **options))


def rank(server, query, documents, **options):
    inputs = [pb.RerankInput(query=query, documents=documents)]
    reply = server.stub.Rerank(pb.RerankRequest(model=pb.ModelRef(name="tokens"), inputs=inputs, **options))
    return reply, {item.document: item.score for item in reply.results[0].documents}


def vectors_of(reply, dtype="<f4"):
    return [np.frombuffer(item.vectors, dtype).reshape(-1, reply.dim) for item in reply.results]


@pytest.mark.parametrize(
    ("kind", "is_query"), [(0, False), (pb.INPUT_TYPE_DOCUMENT, False), (pb.INPUT_TYPE_QUERY, True)]
)
def test_vectors(server, references, kind, is_query):
    """Vectors are those of the task, in the role of the request; the only fitting model answers."""
    prompt = {"prompt_name": "query"} if is_query else {}
    expected = references["tokens"].predict(["the cat", "a bird"], is_query=is_query, **prompt)

    reply = ask(server, ["the cat", "a bird"], input_type=kind)

    assert (reply.model.name, reply.dim) == ("tokens", 8)
    for found, vectors in zip(vectors_of(reply), expected, strict=True):
        np.testing.assert_allclose(found, vectors.vectors, rtol=1e-4, atol=1e-5)
    assert list(reply.num_tokens) == ([8, 8] if is_query else [5, 5])


def test_queries_beside_documents_in_a_batch(server):
    """Masks that fill a query change no vector of a longer text that is computed with it, nor theirs."""
    alone = [vectors_of(ask(server, [text], input_type=pb.INPUT_TYPE_QUERY))[0] for text in ("cat", "the cat sees")]
    beside = vectors_of(ask(server, ["cat", "the cat sees"], input_type=pb.INPUT_TYPE_QUERY))

    for one, other in zip(alone, beside, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_formats_and_offsets(server):
    """float16 vectors are rounded ones; offsets are places in the text; skipped tokens have neither."""
    plain, small = ask(server), ask(server, format=pb.VECTOR_FORMAT_FLOAT16, return_offsets=True)

    assert small.format == pb.VECTOR_FORMAT_FLOAT16
    for one, other in zip(vectors_of(plain), vectors_of(small, "<f2"), strict=True):
        np.testing.assert_array_equal(one.astype(np.float16), other)
    first = small.results[0]
    words = [TEXTS[0][start:end] for start, end in zip(first.starts, first.ends, strict=True)]
    assert words == ["", "", *TEXTS[0].split()[:-1], ""]
    assert not plain.results[0].starts


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        (LONG, {}, "`43` tokens (maximum `16`)"),
        (LONG, {"truncate": False}, "`43` tokens (maximum `16`)"),
        (LONG, {"input_type": pb.INPUT_TYPE_QUERY}, "`45` tokens (maximum `8`)"),
        (LONG * 30, {}, "`5040` characters (maximum `4000`)"),
    ],
)
def test_long_texts_are_refused(server, text, options, reason):
    """A text above the limit of its role is refused with one line: text, length, limit, and what to do."""
    with pytest.raises(grpc.RpcError) as refused:
        ask(server, ["the cat", text], **options)

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == f"texts[1]: text too long: {reason}; shorten it or set `truncate`"


def test_long_texts_are_cut(server, references):
    """With `truncate`, a text has the vectors of its beginning, and the reply counts the tokens that were cut."""
    words = LONG.split()
    for options, num_kept in (({}, 13), ({"input_type": pb.INPUT_TYPE_QUERY, "prompt_name": ""}, 5)):
        cut = ask(server, [LONG], truncate=True, **options)
        beginning = ask(server, [" ".join(words[:num_kept])], **options)

        np.testing.assert_allclose(vectors_of(cut)[0], vectors_of(beginning)[0], rtol=1e-5, atol=1e-6)
        assert (list(cut.num_truncated), list(beginning.num_truncated)) == ([len(words) - num_kept], [0])


def test_replies_are_bounded(server, monkeypatch):
    """Too many vectors are refused before they are computed."""
    monkeypatch.setattr(embed_tokens, "MAX_VECTORS", 15)
    with pytest.raises(grpc.RpcError, match=r"too many tokens: `16` .maximum `15`"):
        ask(server)


def maxsim(reference, query, documents):
    """Return the scores of documents that fit into one window."""
    (asked,) = reference.predict([query], is_query=True, prompt_name="query")
    found = reference.predict(documents)
    return [float((asked.vectors @ item.vectors.T).max(axis=1).sum()) for item in found]


def test_ranking_by_maxsim(server, references):
    """Rerank adds up the largest cosine of each token of the query, masks included."""
    documents = ["the dog runs", "a cat", "the old river", "the cat sees ."]
    expected = maxsim(references["tokens"], "the cat", documents)

    reply, scores = rank(server, "the cat", documents)

    assert scores == pytest.approx(dict(enumerate(expected)), rel=1e-4)
    assert [item.document for item in reply.results[0].documents] == sorted(range(4), key=lambda n: -expected[n])
    assert list(reply.num_windows) == [5]
    assert scores == rank(server, "the cat", documents, raw_scores=True)[1]


def test_long_documents_are_read_in_windows(server, references):
    """A token of the query finds its closest token in any window of a document."""
    reference, documents = references["tokens"], (LONG, "the cat")
    ranking = create_ranking(reference.task)
    (windows,) = ranking.encode([RankingExample("the river", documents)])
    vectors = [reference.outputs(item)["token_embeddings"][item.kept] for item in windows]
    parts = [
        (vectors[0] @ np.concatenate([row for item, row in zip(windows, vectors, strict=True) if item.document == n]).T)
        for n in range(2)
    ]

    reply, scores = rank(server, "the river", documents)

    assert [len(item) for item in windows[1:-1]] == [16] * (len(windows) - 3) + [len(windows[-2])]
    assert list(reply.num_windows) == [len(windows)]
    assert scores == pytest.approx({n: float(part.max(axis=1).sum()) for n, part in enumerate(parts)}, rel=1e-4)


def test_long_queries(server):
    """A query that is too long is refused, or cut."""
    with pytest.raises(grpc.RpcError, match=r"inputs\[0\]\.query: text too long"):
        rank(server, "the cat sees the dog", ["a"])

    assert list(rank(server, "the cat sees the dog", ["a"], truncate=True)[0].num_truncated) == [2]


def test_models_without_normalised_vectors_rank_nothing(tmp_path):
    """Vectors of other lengths have no cosines; the error states what to do."""
    reference = write_model(tmp_path, "tokens", task="token-embedding")
    settings = replace(reference.task.settings, normalize=False)
    write_model(tmp_path / "raw", "tokens", task="token-embedding", settings=settings)
    with serve(tmp_path / "raw") as raw:
        with pytest.raises(grpc.RpcError, match="they are not compared; export it with --normalize"):
            rank(raw, "the cat", ["a"])
        with pytest.raises(grpc.RpcError, match="no model supports the task `rerank`"):
            raw.stub.Rerank(pb.RerankRequest(inputs=[pb.RerankInput(query="a", documents=["b"])]))
