"""Ranking of documents by models of other tasks."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tasks.base import InvalidExamplesError
from tasks.classification import Classification, ClassificationSettings
from tasks.embedding import Embedding, EmbeddingSettings
from tasks.ranking import RankingExample, create_ranking, ranks_by_itself
from tasks.regression import Regression, RegressionSettings
from tasks.spans import SpanExample, Spans, SpanSettings
from tasks.token_embedding import TOKEN_VECTORS, TokenEmbedding, TokenEmbeddingSettings

EXAMPLE = RankingExample("a b", ("c d e", "f", "g h i j k l m n o p q r s t u v w x y z"))


def regression(tokenizer, **settings):
    return Regression(tokenizer, RegressionSettings(max_seq_length=16, **settings))


def classification(tokenizer, *labels, **settings):
    return Classification(tokenizer, ClassificationSettings(max_seq_length=16, labels=labels, **settings))


def spans(tokenizer, **settings):
    return Spans(tokenizer, SpanSettings(max_seq_length=16, max_query_length=8, doc_stride=4, **settings))


def scores(ranking, *logits, example=None):
    """Return the scores of documents with one window each, whose logits are given."""
    example = example or RankingExample("a", ("b",) * len(logits))
    outputs = [{"logits": np.array(row, np.float32)} for row in logits]
    return ranking.decode(example, ranking.encode([example])[0], outputs)


@given(length=st.integers(1, 200), query=st.integers(1, 6))
def test_windows_cover_every_token(tokenizer, length, query):
    """Each token of a document is in a window after the whole query, whatever the length."""
    letters = "".join(chr(ord("a") + number % 26) for number in range(length))
    ranking = create_ranking(regression(tokenizer))
    example = RankingExample(" ".join("z" * query), (" ".join(letters), "q"))

    *windows, last = ranking.encode([example])[0]

    covered = ""
    for window in windows:
        words = [tokenizer.token(token) for token in window.input_ids.tolist()]
        assert words[: query + 2] == ["[CLS]", *"z" * query, "[SEP]"]
        part = "".join(words[query + 2 : -1])
        overlap = next(size for size in range(len(part), -1, -1) if covered.endswith(part[:size]))
        covered += part[overlap:] if covered else part
        assert len(window) <= 16
        assert window.document == 0
    assert covered == letters
    assert last.document == 1


def test_the_best_window_counts(tokenizer):
    """The score of a document is that of its best window."""
    ranking = create_ranking(regression(tokenizer))
    windows = ranking.encode([EXAMPLE])[0]
    values = np.linspace(-1, 1, len(windows)) * np.resize([1, -1], len(windows))

    found = ranking.decode(EXAMPLE, windows, [{"logits": np.array([value])} for value in values])

    owners = np.array([window.document for window in windows])
    assert found == pytest.approx([values[owners == number].max() for number in range(3)])


@pytest.mark.parametrize(("activation", "expected"), [("identity", [-2, 3]), ("sigmoid", scipy.special.expit([-2, 3]))])
def test_regression(tokenizer, activation, expected):
    """Scores are the numbers of the model, after its activation function; raw ones before."""
    task = regression(tokenizer, activation=activation)

    assert scores(create_ranking(task), [-2], [3]) == pytest.approx(expected)
    assert scores(create_ranking(task, raw_scores=True), [-2], [3]).tolist() == [-2, 3]


@pytest.mark.parametrize("labels", [("0", "1"), ("LABEL_0", "LABEL_1")])
def test_two_classes_need_no_label(tokenizer, labels):
    """The second class of cross-encoders means that a document fits."""
    logits = [1.0, 3.0], [2.0, -1.0]

    found = scores(create_ranking(classification(tokenizer, *labels)), *logits)

    assert found == pytest.approx(scipy.special.softmax(logits, axis=1)[:, 1])


@given(arrays(np.float32, (3, 4), elements=st.floats(-50, 50, width=32)), st.integers(0, 3))
def test_labels(tokenizer, logits, label):
    """Scores are the softmax of the label; raw scores are its log-odds."""
    task = classification(tokenizer, *"wxyz")

    found = scores(create_ranking(task, label="wxyz"[label]), *logits)
    raw = scores(create_ranking(task, label="wxyz"[label], raw_scores=True), *logits)

    np.testing.assert_allclose(found, scipy.special.softmax(logits.astype(float), axis=1)[:, label], rtol=1e-6)
    np.testing.assert_allclose(scipy.special.expit(raw), found, rtol=1e-6)


def test_multi_label(tokenizer):
    """A label of a multi-label model has a separate probability."""
    task = classification(tokenizer, *"xyz", problem_type="multi_label_classification")

    found = scores(create_ranking(task, label="y"), [9.0, -1.0, 9.0], [-9.0, 2.0, 9.0])

    assert found == pytest.approx(scipy.special.expit([-1.0, 2.0]))


@given(seed=st.integers(0, 2**32 - 1), null_is_trained=st.booleans())
def test_leads_of_answers(tokenizer, seed, null_is_trained):
    """Leads are those of the spans that Answer finds, when it tries all of them."""
    task = spans(tokenizer, n_best_size=1000, unanswerable=not null_is_trained, null_is_trained=null_is_trained)
    ranking = create_ranking(task, raw_scores=True)
    windows = ranking.encode([EXAMPLE])[0]
    rng = np.random.default_rng(seed)
    outputs = [
        {name: rng.normal(size=len(window)).astype(np.float32) for name in task.output_names} for window in windows
    ]

    found = ranking.decode(EXAMPLE, windows, outputs)

    question = SpanExample(EXAMPLE.query, EXAMPLE.documents[0], more_contexts=EXAMPLE.documents[1:])
    answer = task.decode(question, windows, outputs)
    lowest = answer.null_margin + answer.spans[0].logit
    best = {}
    for span in answer.spans:
        best.setdefault(span.context, span.logit - lowest)
    np.testing.assert_allclose(found, [best[number] for number in range(3)], rtol=1e-5, atol=1e-5)


def test_models_that_cannot_rank(tokenizer):
    """Models of other tasks, and answers without "no answer", are refused with the reason; others may need a label."""
    assert ranks_by_itself(regression(tokenizer))
    assert not ranks_by_itself(spans(tokenizer, unanswerable=True))
    assert not ranks_by_itself(classification(tokenizer, "0", "1"))
    with pytest.raises(ValueError, match="models for `embedding` cannot rank documents; use one of regression, "):
        create_ranking(Embedding(tokenizer, EmbeddingSettings()))
    with pytest.raises(ValueError, match="not trained on unanswerable questions"):
        create_ranking(spans(tokenizer))
    with pytest.raises(ValueError, match=r"`label` is missing; .*: no, yes"):
        create_ranking(classification(tokenizer, "no", "yes"))
    with pytest.raises(ValueError, match="`label` is unknown: `maybe`"):
        create_ranking(classification(tokenizer, "0", "1"), label="maybe")


TOKENS = TokenEmbeddingSettings(
    max_seq_length=12,
    query_length=8,
    query_prefix="?",
    document_prefix="!",
    skiplist_words=(".",),
    normalize=True,
    prompts={"query": "q ", "document": "d "},
)


def by_tokens(tokenizer, **changes):
    return create_ranking(TokenEmbedding(tokenizer, replace(TOKENS, **changes)))


def words_of(tokenizer, window):
    return "".join(tokenizer.token(int(index)) for index in window.input_ids)


def test_windows_have_marker_and_prompt(tokenizer):
    """The query is read once; each window of a document begins with marker and prompt, and shares a quarter."""
    ranking = by_tokens(tokenizer)

    query, *windows = ranking.encode([RankingExample("a b", ("c", "a b c d e f g h i"))])[0]

    assert words_of(tokenizer, query) == "[CLS]?qab[SEP]"
    assert [(item.document, words_of(tokenizer, item)) for item in windows] == [
        (0, "[CLS]!dc[SEP]"),
        (1, "[CLS]!dabcdefgh[SEP]"),
        (1, "[CLS]!dghi[SEP]"),
    ]


def test_scores_add_up_the_closest_tokens(tokenizer):
    """Each token of the query counts with its largest product with any kept token of any window."""
    ranking = by_tokens(tokenizer)
    example = RankingExample("a", ("a .", "b"))
    _, first, second = windows = ranking.encode([example])[0]
    rng = np.random.default_rng(0)
    outputs = [{TOKEN_VECTORS: rng.normal(size=(len(item), 4)).astype(np.float32)} for item in windows]
    asked, *found = (output[TOKEN_VECTORS] for output in outputs)

    scores = ranking.decode(example, windows, outputs)

    assert "." in words_of(tokenizer, first)
    assert len(first.kept) == len(first) - 1
    expected = [
        (asked @ part[item.kept].T).max(axis=1).sum() for part, item in zip(found, (first, second), strict=True)
    ]
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


def test_long_queries_and_blank_documents(tokenizer):
    """Queries that do not fit are cut or named; blank documents are named, also behind a prompt."""
    ranking = by_tokens(tokenizer)

    cut = ranking.encode([RankingExample("a " * 20, ("b",))])[0][0]
    with pytest.raises(InvalidExamplesError) as refused:
        ranking.encode([RankingExample("a " * 20, ("b", " "))], truncate=False)

    assert (len(cut), cut.num_truncated) == (8, 16)
    assert {item.field for item in refused.value.invalid} == {"query", "documents[1]"}


def test_token_vectors_that_cannot_rank(tokenizer):
    """Vectors must be normalised, and a prompt must leave room in a window."""
    assert ranks_by_itself(TokenEmbedding(tokenizer, TOKENS))
    assert not ranks_by_itself(TokenEmbedding(tokenizer, replace(TOKENS, normalize=False)))
    with pytest.raises(ValueError, match="export it with --normalize"):
        by_tokens(tokenizer, normalize=False)
    with pytest.raises(ValueError, match="its prompt for documents has `5` tokens, more than half of a window of 9"):
        by_tokens(tokenizer, prompts={"document": "a b c d e "})
    with pytest.raises(ValueError, match="`label` is for models with labels"):
        create_ranking(TokenEmbedding(tokenizer, TOKENS), label="x")


@pytest.mark.parametrize("kind", ["pairs", "answers", "tokens"])
@given(data=st.data())
def test_documents_without_an_output_are_masked(tokenizer, kind, data):
    """A document whose windows have not all been computed has no score; the others have the same as otherwise."""
    if kind == "tokens":
        settings = TokenEmbeddingSettings(max_seq_length=16, query_length=8, normalize=True)
        task = TokenEmbedding(tokenizer, settings)
    else:
        task = regression(tokenizer) if kind == "pairs" else spans(tokenizer, unanswerable=True)
    ranking = create_ranking(task)
    features = ranking.encode([EXAMPLE])[0]
    rng = np.random.default_rng(0)
    outputs = [
        {name: rng.normal(size=(len(item), 4) if kind == "tokens" else (1,) if kind == "pairs" else len(item))}
        | ({"end_logits": rng.normal(size=len(item))} if kind == "answers" else {})
        for item in features
        for name in ranking.output_names[:1]
    ]
    missing = data.draw(st.sets(st.sampled_from(range(len(features)))))
    documents = [getattr(item, "context" if kind == "answers" else "document") for item in features]
    lost = {documents[number] for number in missing}

    whole = ranking.decode(EXAMPLE, features, outputs)
    found = ranking.decode(EXAMPLE, features, [None if n in missing else item for n, item in enumerate(outputs)])

    masked = [-1 in lost or number in lost for number in range(3)]
    assert np.ma.getmaskarray(found).tolist() == masked
    np.testing.assert_allclose(np.ma.compressed(found), whole[np.logical_not(masked)])
    assert ranking.prediction_problem(found) == ""
