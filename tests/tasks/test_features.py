"""Padding of batches, and its removal from outputs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tasks.features import Features, collate, split_outputs

LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=8)


def make_features(lengths):
    rng = np.random.default_rng(0)
    return [
        Features(input_ids=rng.integers(5, 100, length), token_type_ids=rng.integers(0, 2, length))
        for length in lengths
    ]


@given(lengths=LENGTHS, pad_id=st.integers(0, 4))
def test_collate_pads_and_split_outputs_undoes_it(lengths, pad_id):
    """Token outputs return with the length of their sequence, and sequence outputs unchanged."""
    features = make_features(lengths)
    arrays = collate(features, pad_id=pad_id)
    padding = arrays["attention_mask"] == 0

    assert all(array.shape == (len(lengths), max(lengths)) for array in arrays.values())
    assert all(array.dtype == np.int32 for array in arrays.values())
    assert arrays["attention_mask"].sum(axis=1).tolist() == lengths
    assert (arrays["input_ids"][padding] == pad_id).all()
    assert (arrays["token_type_ids"][padding] == 0).all()
    for item, output in zip(features, split_outputs(arrays, lengths, token_outputs=True), strict=True):
        assert output["input_ids"].tolist() == item.input_ids.tolist()
        assert output["token_type_ids"].tolist() == item.token_type_ids.tolist()
    rows = split_outputs({"logits": arrays["input_ids"]}, lengths, token_outputs=False)
    assert [len(row["logits"]) for row in rows] == [max(lengths)] * len(lengths)
