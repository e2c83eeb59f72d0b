"""Windows over long contexts equal those of run_squad.py in google-research/bert."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.spans import SpanExample, Spans, SpanSettings


def reference_bounds(num_tokens, capacity, doc_stride):
    """Return windows like the reference loop: as many tokens as fit, then a step of the stride."""
    spans, start = [], 0
    while start < num_tokens:
        length = min(num_tokens - start, capacity)
        spans.append((start, start + length))
        if start + length == num_tokens:
            break
        start += min(length, doc_stride)
    return spans


def reference_owner(spans, position):
    """Return the first span with the highest score: smaller side of the context plus 0.01 x length."""
    best, owner = None, None
    for number, (start, end) in enumerate(spans):
        if start <= position < end:
            score = min(position - start, end - 1 - position) + 0.01 * (end - start)
            if best is None or score > best:
                best, owner = score, number
    return owner


@settings(max_examples=60)
@example(num_tokens=270, num_query=1, max_seq_length=260, doc_stride=128)
@given(
    num_tokens=st.integers(1, 400),
    num_query=st.integers(1, 12),
    max_seq_length=st.integers(16, 300),
    doc_stride=st.integers(5, 150),
)
def test_encoded_windows(word_tokenizer, num_tokens, num_query, max_seq_length, doc_stride):
    """Each window has the question and a part of the context with offsets, and each token has one best window."""
    question = " ".join(f"w{190 + index % 5}" for index in range(num_query))
    words = [f"w{index % 190}" for index in range(num_tokens)]
    context = "  ".join(words)
    task = Spans(word_tokenizer, SpanSettings(max_seq_length=max_seq_length, doc_stride=doc_stride, max_query_length=8))
    query_ids = word_tokenizer.tokenize([question])[0].ids[:8].tolist()
    bounds = reference_bounds(num_tokens, max_seq_length - len(query_ids) - 3, doc_stride)

    windows = task.encode([SpanExample(question, context)])[0]

    owned = []
    for number, ((start, end), window) in enumerate(zip(bounds, windows, strict=True)):
        context_ids = word_tokenizer.tokenize([" ".join(words[start:end])])[0].ids.tolist()
        cls, sep = map(word_tokenizer.token_id, ("[CLS]", "[SEP]"))
        assert window.input_ids.tolist() == [cls, *query_ids, sep, *context_ids, sep]
        assert window.token_type_ids.tolist() == [0] * (len(query_ids) + 2) + [1] * (len(context_ids) + 1)
        assert window.in_context.tolist() == [False] * (len(query_ids) + 2) + [True] * len(context_ids) + [False]
        assert [context[a:b] for a, b in window.offsets[window.in_context]] == words[start:end]
        assert (window.offsets[~window.in_context] == 0).all()
        expected = [reference_owner(bounds, position) == number for position in range(start, end)]
        assert window.has_max_context[window.in_context].tolist() == expected
        assert not window.has_max_context[~window.in_context].any()
        owned += (np.flatnonzero(expected) + start).tolist()
    assert sorted(owned) == list(range(num_tokens))
