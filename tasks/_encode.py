"""Steps that the tasks' `encode` share: tokenize texts, collect invalid ones, fit one or two into max_seq_length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.base import InvalidExample, InvalidExamplesError
from tasks.features import Features
from tasks.text.tokenizer import Tokenizer, Tokens

NOT_UTF8 = "not UTF-8: it holds half of a surrogate pair"
EMPTY = "empty text; it needs at least one word"


def encode_pairs(
    tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str | None], max_length: int, *, truncate: bool
) -> list[Features]:
    """Return one sequence of at most `max_length` tokens for each text, or text and its pair.

    Raises:
        InvalidExamplesError: naming each `text` or `text_pair` that is empty or, without `truncate`, too long. If the
            two are too long together, the longer one is named.
    """
    invalid: list[InvalidExample] = []
    options: dict[str, Any] = {"max_ids": max_length, "stop_after": None if truncate else max_length}
    first = tokenize_texts(tokenizer, texts, "text", invalid, **options)
    indices = [index for index, text in enumerate(pairs) if text is not None]
    invalid_pairs: list[InvalidExample] = []
    tokens = tokenize_texts(tokenizer, [pairs[index] or "" for index in indices], "text_pair", invalid_pairs, **options)
    invalid += [replace(item, index=indices[item.index]) for item in invalid_pairs]
    second = dict(zip(indices, tokens, strict=True))
    if not truncate:
        for index, item in enumerate(first):
            both = (item, second[index]) if index in second else (item,)
            template = tokenizer.pair if index in second else tokenizer.single
            field = "text_pair" if len(both[-1]) > len(item) else "text"
            is_complete = all(part.is_complete for part in both)
            check_length(index, field, template.length(*both), max_length, invalid, is_complete=is_complete)
    raise_if_invalid(invalid)
    return [
        _fit_pair(tokenizer, item, second[index], max_length)
        if index in second
        else fit_text(tokenizer, item, max_length)
        for index, item in enumerate(first)
    ]


def fit_text(tokenizer: Tokenizer, tokens: Tokens, max_length: int) -> Features:
    """Return the sequence of one text, cut at its end."""
    kept = tokens.ids[: tokenizer.single.capacity(max_length)]
    return Features(**tokenizer.assemble(kept), num_truncated=len(tokens) - len(kept))


def _fit_pair(tokenizer: Tokenizer, first: Tokens, second: Tokens, max_length: int) -> Features:
    num_first, num_second = fit_pair(len(first), len(second), tokenizer.pair.capacity(max_length))
    arrays = tokenizer.assemble(first.ids[:num_first], second.ids[:num_second])
    return Features(**arrays, num_truncated=len(first) + len(second) - num_first - num_second)


def fit_pair(num_first: int, num_second: int, max_tokens: int) -> tuple[int, int]:
    """Return how many tokens of each text are left after tokens are popped from the end of the longer one until both
    fit. Of two equally long texts, the second loses a token.

    Source: `_truncate_seq_pair` of google-research/bert run_classifier.py.
    """
    excess = num_first + num_second - max_tokens
    if excess > 0:
        level = min(excess, abs(num_first - num_second))
        if num_first > num_second:
            num_first -= level
        else:
            num_second -= level
        rest = excess - level
        num_first -= rest // 2
        num_second -= rest - rest // 2
    return num_first, num_second


def tokenize_texts(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    field: str,
    invalid: list[InvalidExample],
    *,
    ids_only: bool = True,
    max_ids: int | None = None,
    stop_after: int | None = None,
) -> list[Tokens]:
    """Tokenize texts, equal ones once. Add texts that are empty or not UTF-8 to `invalid`.

    Args:
        field: name of the texts in `invalid`.
        ids_only, max_ids, stop_after: see `Tokenizer.tokenize`.
    """
    broken = {index for index, text in enumerate(texts) if not is_utf8(text)}
    readable = ["" if index in broken else text for index, text in enumerate(texts)]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(readable))}
    distinct = tokenizer.tokenize(list(numbers), ids_only=ids_only, max_ids=max_ids, stop_after=stop_after)
    tokens = [distinct[numbers[text]] for text in readable]
    for index, item in enumerate(tokens):
        if index in broken:
            invalid.append(InvalidExample(index, field, NOT_UTF8))
        elif not len(item):
            invalid.append(InvalidExample(index, field, EMPTY))
    return tokens


def tokenize_fitting(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    field: str,
    max_length: int,
    invalid: list[InvalidExample],
    *,
    truncate: bool,
    num_more: int = 0,
    prompt: str = "",
    ids_only: bool = True,
) -> list[Tokens]:
    """Tokenize texts that must fit, behind a prompt.

    Args:
        field: name of the texts in `invalid`.
        max_length: most tokens of a text and `num_more`.
        invalid: receives texts that are empty, not UTF-8 or, without `truncate`, too long.
        num_more: tokens of each sequence besides the text, such as special ones.
        ids_only: see `Tokenizer.tokenize`.
    """
    options = {"ids_only": ids_only, "max_ids": max_length, "stop_after": None if truncate else max_length}
    tokens = tokenize_prompted(tokenizer, texts, prompt, field, invalid, **options)
    if not truncate:
        for index, item in enumerate(tokens):
            check_length(index, field, len(item) + num_more, max_length, invalid, is_complete=item.is_complete)
    return tokens


def tokenize_prompted(
    tokenizer: Tokenizer, texts: Sequence[str], prompt: str, field: str, invalid: list[InvalidExample], **options: Any
) -> list[Tokens]:
    """Tokenize texts behind a prompt, as `tokenize_texts`. Texts with no tokens besides the prompt's are invalid."""
    tokens = tokenize_texts(tokenizer, [prompt + text for text in texts], field, invalid, **options)
    if prompt:
        (alone,) = tokenizer.tokenize([prompt], ids_only=True)
        known = {item.index for item in invalid}
        for index, item in enumerate(tokens):
            if index not in known and np.array_equal(item.ids, alone.ids):
                invalid.append(InvalidExample(index, field, EMPTY))
    return tokens


def tokenize_lists(
    tokenizer: Tokenizer,
    lists: Sequence[Sequence[str]],
    field_of: Callable[[int, int], str],
    invalid: list[InvalidExample],
    *,
    ids_only: bool = True,
) -> list[list[Tokens]]:
    """Tokenize several texts for each example, equal ones once. Add texts that are empty or not UTF-8 to `invalid`.

    Args:
        lists: texts of each example.
        field_of: returns the name of a text in `invalid`, given the numbers of example and text.
        ids_only: see `Tokenizer.tokenize`.
    """
    places = [(index, number) for index, texts in enumerate(lists) for number in range(len(texts))]
    found: list[InvalidExample] = []
    texts = [text for items in lists for text in items]
    tokens = iter(tokenize_texts(tokenizer, texts, "", found, ids_only=ids_only))
    for item in found:
        index, number = places[item.index]
        invalid.append(InvalidExample(index, field_of(index, number), item.reason))
    return [[next(tokens) for _ in items] for items in lists]


def is_utf8(text: str) -> bool:
    """Return whether a text has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_length(
    index: int, field: str, num_tokens: int, max_tokens: int, invalid: list[InvalidExample], *, is_complete: bool = True
) -> None:
    """Add a text that is longer than the model can read to `invalid`.

    Args:
        is_complete: False if the text was not read to its end, and may have more than `num_tokens`.
    """
    if num_tokens > max_tokens:
        count = f"`{num_tokens}` tokens" if is_complete else f"at least `{num_tokens}` tokens"
        reason = f"text too long: {count} (maximum `{max_tokens}`); shorten it or set `truncate`"
        invalid.append(InvalidExample(index, field, reason))


def raise_if_invalid(invalid: list[InvalidExample]) -> None:
    """Raise InvalidExamplesError if any example is invalid, in the order of the examples."""
    if invalid:
        raise InvalidExamplesError(sorted(invalid, key=lambda item: item.index))
