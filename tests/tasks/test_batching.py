"""Batches by tokens, their padding, and predictions that do not depend on them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks import InvalidExamplesError, create_task, settings_from_dict
from tasks.batching import predict, token_batches
from tasks.classification import ClassificationExample
from tasks.features import Features, collate, split_outputs
from tasks.spans import SpanExample


@given(lengths=st.lists(st.integers(1, 50), max_size=60), max_batch_tokens=st.integers(1, 200))
def test_token_batches(lengths, max_batch_tokens):
    """Each sequence is in one batch, longest first; batches of several sequences stay within the cap, and are full."""
    batches = list(token_batches(lengths, max_batch_tokens))
    flat = [index for batch in batches for index in batch]

    assert sorted(flat) == list(range(len(lengths)))
    assert [lengths[index] for index in flat] == sorted(lengths, reverse=True)
    assert all(len(batch) == 1 or len(batch) * lengths[batch[0]] <= max_batch_tokens for batch in batches)
    assert all(lengths[batch[0]] * (len(batch) + 1) > max_batch_tokens for batch in batches[:-1])


def run_model(arrays):
    """Return outputs that depend only on the tokens of a sequence, not on its padding."""
    signal = np.sin(
        arrays["input_ids"] * 0.7 + arrays["token_type_ids"] * 0.3 + np.arange(arrays["input_ids"].shape[1])
    )
    signal = np.where(arrays["attention_mask"] == 1, signal, 0.0)
    whole = np.stack([signal.cumsum(axis=1)[:, -1], np.ones(len(signal))], axis=-1)
    return {"logits": whole, "start_logits": signal, "end_logits": -signal, "sentence_embedding": whole}


def run_tokens(arrays):
    return {name: array for name, array in run_model(arrays).items() if name.endswith("_logits")}


def run_sequences(arrays):
    return {name: run_model(arrays)[name] for name in ("logits", "sentence_embedding")}


WORDS = [" ".join(f"w{(7 * index + item) % 200}" for item in range(1 + index * 5 % 23)) for index in range(12)]


@pytest.fixture(params=["embedding", "classification", "spans"])
def case(request, word_tokenizer):
    """Task, examples of it, and a function that runs its model."""
    values, run = {"max_seq_length": 16}, run_sequences
    examples = {
        "embedding": WORDS,
        "classification": [ClassificationExample(text, WORDS[0] if len(text) % 2 else None) for text in WORDS],
        "spans": [SpanExample("w1 w2", text) for text in WORDS],
    }[request.param]
    if request.param == "classification":
        values |= {"labels": ["no", "yes"]}
    if request.param == "spans":
        values, run = values | {"doc_stride": 4, "max_query_length": 4}, run_tokens
    task = create_task(request.param, word_tokenizer, settings_from_dict(request.param, values))
    return task, examples, run


@pytest.mark.parametrize(("max_batch_tokens", "chunk_size"), [(1, 1), (16, 5), (50, 3), (100_000, 1000)])
def test_predictions_do_not_depend_on_batches(case, max_batch_tokens, chunk_size):
    """Predictions are the same for any batch and chunk size, in the order of the examples."""
    task, examples, run = case
    alone = [predict(task, [example], run)[0] for example in examples]
    finished = []

    together = predict(
        task, examples, run, max_batch_tokens=max_batch_tokens, chunk_size=chunk_size, progress=finished.append
    )

    for expected, prediction in zip(alone, together, strict=True):
        for name in ("scores", "spans"):
            if hasattr(expected, name):
                expected, prediction = getattr(expected, name), getattr(prediction, name)
        np.testing.assert_equal(prediction, expected)
    assert sum(finished) == len(examples)


@settings(max_examples=20)
@given(index=st.integers(0, 9), chunk_size=st.integers(1, 12))
def test_invalid_examples_have_their_index_in_the_whole_list(word_tokenizer, index, chunk_size):
    """The error gives the index in the whole list, whatever the chunk size."""
    task = create_task("embedding", word_tokenizer, settings_from_dict("embedding", {}))
    texts = ["w1"] * 10
    texts[index] = " "

    with pytest.raises(InvalidExamplesError, match=f"example {index}, text: empty") as caught:
        predict(task, texts, run_sequences, chunk_size=chunk_size)

    assert [item.index for item in caught.value.invalid] == [index]


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
