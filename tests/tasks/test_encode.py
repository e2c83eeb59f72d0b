"""Truncation of pairs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertTokenizer

from tasks.classification import Classification, ClassificationExample, ClassificationSettings


@pytest.fixture(scope="module")
def slow(vocab, tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(vocab), encoding="utf-8")
    return BertTokenizer(str(path))


@settings(max_examples=100)
@given(num_first=st.integers(1, 20), num_second=st.integers(0, 20), max_seq_length=st.integers(8, 30))
def test_truncated_pairs_equal_transformers(tokenizer, slow, num_first, num_second, max_seq_length):
    """Long texts and pairs have the ids and token types of transformers' `longest_first`."""
    text, text_pair = "a " * num_first, "b " * num_second or None
    task = Classification(tokenizer, ClassificationSettings(max_seq_length=max_seq_length, labels=("no", "yes")))

    features = task.encode([ClassificationExample(text, text_pair)])[0][0]

    expected = slow(text, text_pair, truncation="longest_first", max_length=max_seq_length, verbose=False)

    assert features.input_ids.tolist() == expected["input_ids"]
    assert features.token_type_ids.tolist() == expected["token_type_ids"]
