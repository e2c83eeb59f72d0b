"""Token embeddings: markers, skip-list, query expansion and offsets."""

import numpy as np
import pytest

from tasks.base import InvalidExamplesError
from tasks.features import collate
from tasks.token_embedding import TOKEN_VECTORS, TokenEmbedding, TokenEmbeddingSettings

SETTINGS = {"max_seq_length": 16, "query_length": 8, "query_prefix": "?", "document_prefix": "!"}


def create(tokenizer, is_query=False, with_offsets=False, prompt_name=None, **changes):
    settings = TokenEmbeddingSettings(**SETTINGS | changes)
    return TokenEmbedding(tokenizer, settings, is_query=is_query, with_offsets=with_offsets, prompt_name=prompt_name)


def tokens_of(tokenizer, features, kept=False):
    ids = features.input_ids[features.kept] if kept else features.input_ids
    return [tokenizer.token(int(index)) for index in ids]


def encode(tokenizer, text, **options):
    ((features,),) = create(tokenizer, **options).encode([text])
    return features


def test_markers_follow_the_first_special_token(tokenizer):
    """Queries and documents have their own marker behind [CLS]."""
    query, document = (encode(tokenizer, "a b", is_query=is_query) for is_query in (True, False))

    assert tokens_of(tokenizer, query) == ["[CLS]", "?", "a", "b", "[SEP]"]
    assert tokens_of(tokenizer, document) == ["[CLS]", "!", "a", "b", "[SEP]"]


def test_documents_leave_out_the_skip_list(tokenizer):
    """Tokens of the skip-list are read and have no vectors; those of queries have."""
    options = {"skiplist_words": (".", "a")}
    query, document = (encode(tokenizer, "a b .", is_query=is_query, **options) for is_query in (True, False))

    assert tokens_of(tokenizer, document) == ["[CLS]", "!", "a", "b", ".", "[SEP]"]
    assert tokens_of(tokenizer, document, kept=True) == ["[CLS]", "!", "b", "[SEP]"]
    assert tokens_of(tokenizer, query, kept=True) == ["[CLS]", "?", "a", "b", ".", "[SEP]"]


def test_unknown_words_of_the_skip_list_stand_for_unknown_tokens(tokenizer):
    """As in PyLate, where the id of a word that is no token is that of the unknown token."""
    document = encode(tokenizer, "a ☃", skiplist_words=("no token",))

    assert tokens_of(tokenizer, document) == ["[CLS]", "!", "a", "[UNK]", "[SEP]"]
    assert tokens_of(tokenizer, document, kept=True) == ["[CLS]", "!", "a", "[SEP]"]


@pytest.mark.parametrize("attended", [False, True])
def test_queries_are_filled_with_masks(tokenizer, attended):
    """Masks fill queries up to their length and have vectors; the attention mask hides them unless it should not."""
    options = {"do_query_expansion": True, "attend_to_expansion_tokens": attended}
    query = encode(tokenizer, "a b", is_query=True, **options)
    arrays = collate([query], length=10)

    assert tokens_of(tokenizer, query, kept=True) == ["[CLS]", "?", "a", "b", "[SEP]", *["[MASK]"] * 3]
    assert arrays["attention_mask"][0].tolist() == [1] * 5 + [int(attended)] * 3 + [0] * 2
    assert len(encode(tokenizer, "a b", **options)) == 5  # documents are not


def test_long_texts_are_cut_or_refused(tokenizer):
    """The limits of queries and documents differ."""
    query, document = (encode(tokenizer, "a " * 30, is_query=is_query) for is_query in (True, False))

    assert [(len(item), item.num_truncated) for item in (query, document)] == [(8, 25), (16, 17)]
    assert tokens_of(tokenizer, query)[-1] == "[SEP]"
    with pytest.raises(InvalidExamplesError, match=r"text too long: `9` tokens .maximum `8`"):
        create(tokenizer, is_query=True).encode(["a " * 6], truncate=False)
    create(tokenizer, is_query=True).encode(["a " * 5], truncate=False)


def test_offsets_are_those_of_the_text(tokenizer):
    """Special tokens, markers and prompts have no place in the text; skipped tokens have no offsets."""
    options = {"with_offsets": True, "prompts": {"p": "b a "}, "skiplist_words": (".",)}
    plain, prompted = (encode(tokenizer, "a  b. c", prompt_name=name, **options) for name in ("", "p"))

    assert plain.offsets.tolist() == [[0, 0], [0, 0], [0, 1], [3, 4], [6, 7], [0, 0]]
    assert prompted.offsets.tolist() == [[0, 0]] * 4 + [[0, 1], [3, 4], [6, 7], [0, 0]]
    assert encode(tokenizer, "a", **options | {"with_offsets": False}).offsets is None


def test_vectors_of_kept_tokens(tokenizer):
    """A prediction has the rows of the output that count."""
    task = create(tokenizer, skiplist_words=("a",))
    (features,) = task.encode(["b a c"])[0]
    output = np.arange(12, dtype=np.float32).reshape(6, 2)

    found = task.decode("b a c", [features], [{TOKEN_VECTORS: output}])

    assert found.vectors.tolist() == output[[0, 1, 2, 4, 5]].tolist()


def test_settings(tokenizer):
    """Impossible settings are refused."""
    for changes, message in (
        ({"layers": ("dense",)}, "layers must be 'normalize', .*: `dense`"),
        ({"query_length": 17}, "query_length must be 0, or 8 to max_seq_length, 16: `17`"),
        ({"document_length": 4}, "document_length must be 0, or 8 to"),
        ({"query_prefix": "[Q] "}, r"query_prefix `\[Q\] ` is no token of the tokenizer"),
    ):
        with pytest.raises(ValueError, match=message):
            create(tokenizer, **changes)
