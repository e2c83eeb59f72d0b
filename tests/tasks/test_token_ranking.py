"""Ranking by vectors of tokens (MaxSim): windows, prompts and mistakes."""

from dataclasses import replace

import numpy as np
import pytest

from tasks.base import InvalidExamplesError
from tasks.ranking import RankingExample, create_ranking, ranks_by_itself
from tasks.token_embedding import TOKEN_VECTORS, TokenEmbedding, TokenEmbeddingSettings

SETTINGS = TokenEmbeddingSettings(
    max_seq_length=12,
    query_length=8,
    query_prefix="?",
    document_prefix="!",
    skiplist_words=(".",),
    normalize=True,
    prompts={"query": "q ", "document": "d "},
)


def create(tokenizer, **changes):
    return create_ranking(TokenEmbedding(tokenizer, replace(SETTINGS, **changes)))


def words(tokenizer, window):
    return "".join(tokenizer.token(int(index)) for index in window.input_ids)


def test_windows_have_marker_and_prompt(tokenizer):
    """The query is read once; each window of a document begins with marker and prompt, and shares a quarter."""
    ranking = create(tokenizer)

    query, *windows = ranking.encode([RankingExample("a b", ("c", "a b c d e f g h i"))])[0]

    assert words(tokenizer, query) == "[CLS]?qab[SEP]"
    assert [(item.document, words(tokenizer, item)) for item in windows] == [
        (0, "[CLS]!dc[SEP]"),
        (1, "[CLS]!dabcdefgh[SEP]"),
        (1, "[CLS]!dghi[SEP]"),
    ]


def test_scores_add_up_the_closest_tokens(tokenizer):
    """Each token of the query counts with its largest product with any kept token of any window."""
    ranking = create(tokenizer)
    example = RankingExample("a", ("a .", "b"))
    _, first, second = windows = ranking.encode([example])[0]
    rng = np.random.default_rng(0)
    outputs = [{TOKEN_VECTORS: rng.normal(size=(len(item), 4)).astype(np.float32)} for item in windows]
    asked, *found = (output[TOKEN_VECTORS] for output in outputs)

    scores = ranking.decode(example, windows, outputs)

    assert "." in words(tokenizer, first)
    assert len(first.kept) == len(first) - 1
    expected = [
        (asked @ part[item.kept].T).max(axis=1).sum() for part, item in zip(found, (first, second), strict=True)
    ]
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


def test_long_queries_and_blank_documents(tokenizer):
    """Queries that do not fit are cut or named; blank documents are named, also behind a prompt."""
    ranking = create(tokenizer)

    cut = ranking.encode([RankingExample("a " * 20, ("b",))])[0][0]
    with pytest.raises(InvalidExamplesError) as refused:
        ranking.encode([RankingExample("a " * 20, ("b", " "))], truncate=False)

    assert (len(cut), cut.num_truncated) == (8, 16)
    assert {item.field for item in refused.value.invalid} == {"query", "documents[1]"}


def test_models_that_cannot(tokenizer):
    """Vectors must be normalised, and a prompt must leave room in a window."""
    assert ranks_by_itself(TokenEmbedding(tokenizer, SETTINGS))
    assert not ranks_by_itself(TokenEmbedding(tokenizer, replace(SETTINGS, normalize=False)))
    with pytest.raises(ValueError, match="export it with --normalize"):
        create(tokenizer, normalize=False)
    with pytest.raises(ValueError, match="its prompt for documents has `5` tokens, more than half of a window of 9"):
        create(tokenizer, prompts={"document": "a b c d e "})
    with pytest.raises(ValueError, match="`label` is for models with labels"):
        create_ranking(TokenEmbedding(tokenizer, SETTINGS), label="x")
