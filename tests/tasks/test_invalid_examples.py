"""Errors for invalid examples give index, field and reason."""

import pytest

from tasks import InvalidExample, InvalidExamplesError, create_task, settings_from_dict
from tasks.classification import ClassificationExample
from tasks.masked_lm import ClozeExample
from tasks.spans import SpanExample

EMPTY = ["", " \n\t", "\x00\x01\u200b\ufffd", "\u00a0\u3000", "\u0301"]
"""Texts without a token: nothing, white space, control characters, wide spaces, a lone accent."""


def make_task(name, tokenizer, **values):
    labels = {"labels": ["no", "yes"]} if name == "classification" else {}
    if name == "spans":
        values = {"max_query_length": 4} | values
    return create_task(name, tokenizer, settings_from_dict(name, {"max_seq_length": 8} | labels | values))


def invalid_of(task, examples, **arguments):
    with pytest.raises(InvalidExamplesError) as caught:
        task.encode(examples, **arguments)
    assert "\n" not in str(caught.value)
    return caught.value.invalid


def pairs(kind, empty, first="a", second="b"):
    """Return valid pairs, and pairs with an empty text."""
    return [kind(*pair) for pair in [(first, second), (empty, second), (first, empty), (empty, empty)]]


@pytest.mark.parametrize("empty", EMPTY)
@pytest.mark.parametrize(
    ("name", "kind", "fields"),
    [
        ("embedding", lambda text, _: text, ("text", "")),
        ("masked-lm", lambda text, _: ClozeExample(text), ("text", "")),
        ("classification", ClassificationExample, ("text", "text_pair")),
        ("spans", SpanExample, ("question", "context")),
    ],
)
def test_empty_texts(tokenizer, name, kind, fields, empty):
    """Exactly the texts without tokens are reported, each of a pair by its field."""
    invalid = invalid_of(make_task(name, tokenizer), pairs(kind, empty, first="[MASK]"))

    expected = [(1, fields[0]), (2, fields[1]), (3, fields[0]), (3, fields[1])]
    assert [(item.index, item.field) for item in invalid] == [place for place in expected if place[1]]
    assert {item.reason for item in invalid} == {"empty text; it needs at least one word"}


@pytest.mark.parametrize("truncate", [True, False])
def test_half_surrogates(tokenizer, truncate):
    """Text with half of a surrogate pair, which JSON can contain, is reported as not UTF-8."""
    invalid = invalid_of(make_task("embedding", tokenizer), ["a", "b \ud83d c"], truncate=truncate)

    assert invalid == [InvalidExample(1, "text", "not UTF-8: it holds half of a surrogate pair")]


TOO_LONG = {
    "embedding": ("a a a a a a", "a a a a a a a", 9),
    "classification": (ClassificationExample("a a a", "b b"), ClassificationExample("a a a", "b b b"), 9),
    "masked-lm": (ClozeExample("[MASK] a a a a a"), ClozeExample("[MASK] a a a a a a"), 9),
}
"""Example that just fits into 8 tokens, one that does not, and its number of tokens."""


@pytest.mark.parametrize("name", TOO_LONG)
def test_too_long(tokenizer, name):
    """Without `truncate` the error gives the number of tokens and the limit; with it the text is cut."""
    task, (fits, too_long, num_tokens) = make_task(name, tokenizer), TOO_LONG[name]

    assert len(task.encode([fits], truncate=False)[0][0]) == 8
    assert len(task.encode([too_long])[0][0]) == 8
    invalid = invalid_of(task, [fits, too_long, fits], truncate=False)
    reason = f"text too long: `{num_tokens}` tokens (maximum `8`); shorten it or set `truncate`"
    assert invalid == [InvalidExample(1, "text", reason)]


def test_too_long_question(tokenizer):
    """Questions have the limit max_query_length, and contexts have none."""
    task = make_task("spans", tokenizer)

    assert len(task.encode([SpanExample("a a a a", "b " * 50)], truncate=False)[0]) == 50
    invalid = invalid_of(task, [SpanExample("a a a a a", "b")], truncate=False)
    reason = "text too long: `5` tokens (maximum `4`); shorten it or set `truncate`"
    assert invalid == [InvalidExample(0, "question", reason)]


def test_the_message_names_three_and_counts_the_rest(tokenizer):
    """The message names three examples and counts the others, and `invalid` has all."""
    with pytest.raises(InvalidExamplesError) as caught:
        make_task("embedding", tokenizer).encode([""] * 5)

    reason = "empty text; it needs at least one word"
    named = "; ".join(f"example {index}, text: {reason}" for index in range(3))

    assert str(caught.value) == f"{named} (and 2 more)"
    assert len(caught.value.invalid) == 5


@pytest.mark.parametrize("name", ["embedding", "classification", "masked-lm", "spans"])
def test_no_examples(tokenizer, name):
    """Encoding an empty list returns an empty list."""
    assert make_task(name, tokenizer).encode([]) == []
