"""Rerank: documents in the order in which they fit a query, by models of several tasks."""

import time

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertline.v1 import encoder_pb2 as pb
from serving.core.encoding import TextEncoder
from serving.core.models import Model
from tasks.classification import ClassificationExample
from tasks.regression import RegressionExample
from tasks.spans import SpanExample
from tests.serving.conftest import serve
from tests.serving.models import SETTINGS, WORDS, edit_manifest, write_model

QUERY = "who sees the dog ?"
DOCUMENTS = ["the cat sees the old dog .", "a river", "the bird likes the tree", "cats", "the dog sleeps under a tree"]
LONG = "the small red bird sees the big green tree near the old river . " * 4
sentences = st.lists(st.sampled_from([*WORDS, "zebra", "."]), min_size=1, max_size=12).map(" ".join)


def rerank(server, documents=DOCUMENTS, query=QUERY, model="scorer", **options):
    inputs = [pb.RerankInput(query=query, documents=documents)]
    return server.stub.Rerank(pb.RerankRequest(model=pb.ModelRef(name=model), inputs=inputs, **options))


def scores_of(reply):
    """Return the scores of the only input, in the order of its documents."""
    found = {item.document: item.score for item in reply.results[0].documents}
    return [found[number] for number in sorted(found)]


@given(query=sentences, documents=st.lists(sentences, min_size=1, max_size=8))
def test_ranking_equals_regression(server, references, query, documents):
    """Any documents that fit get the scores of Regress; equal documents keep their order."""
    reply = rerank(server, documents, query)

    expected = references["scorer"].predict([RegressionExample(query, document) for document in documents])
    ranked = [(-item.score, item.document) for item in reply.results[0].documents]
    np.testing.assert_allclose(scores_of(reply), expected, rtol=1e-4, atol=1e-5)
    assert ranked == sorted(ranked)


@pytest.mark.parametrize("label", ["no", "maybe", "entailment"])
def test_a_classification_ranks_by_the_probability_of_a_label(server, references, label):
    """Scores are the probability of the named label, and raw scores its log-odds."""
    reply = rerank(server, model="classifier", label=label)
    raw = scores_of(rerank(server, model="classifier", label=label, raw_scores=True))

    predictions = references["classifier"].predict([ClassificationExample(QUERY, text) for text in DOCUMENTS])
    expected = np.array([item.scores[item.labels.index(label)] for item in predictions], dtype=np.float64)
    np.testing.assert_allclose(scores_of(reply), expected, rtol=1e-4)
    np.testing.assert_allclose(raw, np.log(expected / (1 - expected)), rtol=1e-3, atol=1e-3)


def test_answers_rank_as_they_are_compared(server, references):
    """A model for answers ranks documents as Answer orders the best spans of contexts, by their lead."""
    reply = rerank(server, model="reader", raw_scores=True)

    example = SpanExample(QUERY, DOCUMENTS[0], more_contexts=tuple(DOCUMENTS[1:]))
    answer = references["reader"].predict([example])[0]
    contexts = list(dict.fromkeys(span.context for span in answer.spans))
    assert [item.document for item in reply.results[0].documents] == contexts
    assert reply.results[0].documents[0].score == pytest.approx(-answer.null_margin, rel=1e-4)
    assert scores_of(rerank(server, model="reader")) == pytest.approx(
        [1 / (1 + np.exp(-score)) for score in scores_of(reply)], rel=1e-4
    )


def test_long_documents_are_read_in_windows(server, references):
    """The best window of a long document counts; a quarter of each window is in the next one, too."""
    reply = rerank(server, [LONG, DOCUMENTS[0]])

    words, room = LONG.split(), 32 - 3 - len(QUERY.split())
    stride = room - room // 4
    starts = [0]
    while starts[-1] + room < len(words):
        starts.append(starts[-1] + stride)
    parts = [" ".join(words[start : start + room]) for start in starts]
    expected = references["scorer"].predict([RegressionExample(QUERY, part) for part in parts])
    assert scores_of(reply)[0] == pytest.approx(max(expected), rel=1e-5)
    assert list(reply.num_windows) == [len(parts) + 1]
    assert list(reply.num_truncated) == [0]


def test_equal_scores_keep_their_order(tmp_path):
    """Scores that are equal in the reply are ordered by the documents, although those of the model differ."""
    write_model(tmp_path, "scorer", task="regression", edit=lambda weights: weights.head.__imul__(1e6))
    edit_manifest(tmp_path / "scorer" / "1", settings=SETTINGS["regression"] | {"activation": "sigmoid"})
    with serve(tmp_path) as running:
        ranked = rerank(running, DOCUMENTS * 3).results[0].documents

    pairs = [(-item.score, item.document) for item in ranked]
    assert pairs == sorted(pairs)
    assert len({item.score for item in ranked}) < len(ranked)


@pytest.mark.parametrize(("top_n", "expected"), [(0, 5), (1, 1), (3, 3), (1000, 5)])
def test_top_n(server, top_n, expected):
    """Replies have the best top_n documents, all by default."""
    found = [item.document for item in rerank(server, top_n=top_n).results[0].documents]

    assert found == [item.document for item in rerank(server).results[0].documents][:expected]


@pytest.mark.parametrize(("model", "longest"), [("scorer", 14), ("reader", 6)])
def test_long_queries(server, model, longest):
    """A query that is too long is refused by name, or cut with `truncate`."""
    with pytest.raises(grpc.RpcError) as refused:
        rerank(server, query="the dog " * 20, model=model)
    reply = rerank(server, query="the dog " * 20, model=model, truncate=True)

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "inputs[0].query: text too long" in refused.value.details()
    assert f"maximum `{longest}`" in refused.value.details()
    assert list(reply.num_truncated) == [40 - longest]


def test_models_that_rank_without_advice(tmp_path):
    """Without a name, only a model for regression ranks; models that answer questions or give labels must be named."""
    reader = SETTINGS["spans"]
    write_model(tmp_path, "classifier", task="classification")
    write_model(tmp_path, "reader", task="spans")
    write_model(tmp_path, "answerable", task="spans")
    edit_manifest(tmp_path / "answerable" / "1", settings=reader | {"unanswerable": False})
    with serve(tmp_path) as running:
        assert rerank(running, model="reader").results
        with pytest.raises(grpc.RpcError, match="no model supports the task `rerank` unless the request names it"):
            rerank(running, model="")
        with pytest.raises(grpc.RpcError, match="it was not trained on unanswerable questions"):
            rerank(running, model="answerable")
    write_model(tmp_path, "scorer", task="regression")
    with serve(tmp_path) as running:
        assert rerank(running, model="").model.name == "scorer"


@pytest.fixture
def slow(server, monkeypatch):
    """Make each batch of the server's models take 30 ms."""
    compute = Model.compute

    def slowly(self, sequences, run=None):
        time.sleep(0.03 * len(sequences))
        return compute(self, sequences, run)

    monkeypatch.setattr(Model, "compute", slowly)


@pytest.mark.parametrize(("model", "options"), [("scorer", {}), ("reader", {}), ("classifier", {"label": "no"})])
@pytest.mark.usefixtures("slow")
def test_best_effort_ranks_what_it_can(server, model, options):
    """Before the deadline, the first documents are ranked; the others follow in their order, without a score."""
    documents = [f"{text} {'cat ' * (number % 3)}" for number, text in enumerate(DOCUMENTS * 12)]
    inputs = [pb.RerankInput(query=QUERY, documents=documents)]
    request = pb.RerankRequest(model=pb.ModelRef(name=model), inputs=inputs, best_effort=True, **options)
    with pytest.raises(grpc.RpcError) as caught:
        server.stub.Rerank(rerank_without_best_effort(request), timeout=0.4)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED

    result = server.stub.Rerank(request, timeout=0.4).results[0]
    count = result.num_scored
    assert 0 < count < len(documents) == len(result.documents)
    ranked, others = result.documents[:count], [item.document for item in result.documents[count:]]
    assert [item.score for item in ranked] == sorted((item.score for item in ranked), reverse=True)
    assert others == sorted(others)
    assert sorted([item.document for item in result.documents]) == list(range(len(documents)))
    assert not any(item.score for item in result.documents[count:])


def test_best_effort_is_not_refused_while_it_is_tokenized(server, monkeypatch):
    """Long documents are refused early if they cannot be computed in time, but not those of a best effort."""
    refuses = []
    check_tokens = TextEncoder.check_tokens
    monkeypatch.setattr("serving.core.encoding.UNCHECKED_BYTES", 0)  # as for long documents
    monkeypatch.setattr(
        TextEncoder,
        "check_tokens",
        lambda *args, is_windowed: (refuses.append(is_windowed), check_tokens(*args, is_windowed=is_windowed))[1],
    )
    inputs = [pb.RerankInput(query=QUERY, documents=DOCUMENTS)]
    request = pb.RerankRequest(model=pb.ModelRef(name="scorer"), inputs=inputs, best_effort=True)
    server.stub.Rerank(request, timeout=30)
    server.stub.Rerank(rerank_without_best_effort(request), timeout=30)

    assert refuses == [False, False, True, True]


def rerank_without_best_effort(request):
    copy = pb.RerankRequest()
    copy.CopyFrom(request)
    copy.best_effort = False
    return copy


def test_best_effort_with_time_is_the_whole_ranking(server):
    """Without a deadline, or with a late one, all documents are scored as otherwise."""
    plain = rerank(server).results[0]

    for timeout in (None, 30):
        inputs = [pb.RerankInput(query=QUERY, documents=DOCUMENTS)]
        request = pb.RerankRequest(model=pb.ModelRef(name="scorer"), inputs=inputs, best_effort=True)
        result = server.stub.Rerank(request, timeout=timeout).results[0]
        assert result.num_scored == len(DOCUMENTS)
        assert list(result.documents) == list(plain.documents)
