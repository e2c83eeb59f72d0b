"""What tags spell, and the likeliest tags that spell it without a fault."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.tags import best_tags, is_strict

SCHEMES = {
    "IOB2": ("B-LOC", "B-PER", "I-LOC", "I-PER", "O"),
    "IOBES": ("B-X", "E-X", "I-X", "O", "S-X"),
}


@pytest.mark.parametrize("labels", SCHEMES.values(), ids=SCHEMES)
@given(seed=st.integers(0, 2**32 - 1), num_words=st.integers(1, 5))
def test_no_strict_tags_are_likelier(labels, seed, num_words):
    """Of all sequences of tags that are strict, those found have the largest sum."""
    logits = np.random.default_rng(seed).normal(size=(num_words, len(labels))).astype(np.float32)

    found = best_tags(logits, labels)

    words = np.arange(num_words)
    strict = [p for p in product(range(len(labels)), repeat=num_words) if is_strict([[labels[i] for i in p]])]
    assert is_strict([[labels[number] for number in found]])
    assert logits[words, found].sum() == pytest.approx(max(logits[words, list(p)].sum() for p in strict), abs=1e-5)


def test_tags_that_are_strict_already_stay():
    """Each word's likeliest; also of no words at all."""
    labels = SCHEMES["IOB2"]
    logits = np.eye(5)[[4, 1, 3, 3, 0]]

    assert best_tags(logits, labels).tolist() == [4, 1, 3, 3, 0]
    assert best_tags(np.zeros((0, 5)), labels).tolist() == []


@pytest.mark.parametrize(
    ("tags", "strict"),
    [
        (["B-LOC", "I-LOC", "O", "B-PER"], True),
        (["B-X", "I-X", "E-X", "S-X"], True),
        (["O", "I-LOC"], False),
        (["B-LOC", "I-PER"], False),
        (["NOUN", "VERB"], False),
        (["O"], True),
    ],
)
def test_schemes_are_told_apart(tags, strict):
    """IOB1 begins entities with `I`; parts of speech are no entities."""
    assert is_strict([["O"], tags]) == strict
