"""Fit one or two texts into max_seq_length; shared by the tasks that read a text whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tasks.base import InvalidExample, InvalidExamplesError
from tasks.features import Features
from tasks.tokenizer import Tokenizer, Tokens


def encode_pairs(
    tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str | None], max_length: int, *, truncate: bool
) -> list[Features]:
    """A sequence for each text, or text with its pair, of at most `max_length` tokens.

    Raises:
        InvalidExamplesError: naming the texts (`text` or `text_pair`) that are empty or, without `truncate`, too long;
            of two that are too long together, the longer one.
    """
    invalid: list[InvalidExample] = []
    first = tokenize_texts(tokenizer, texts, "text", invalid)
    paired = {index: pair for index, pair in enumerate(pairs) if pair is not None}
    numbers = list(paired)
    pair_invalid: list[InvalidExample] = []
    second = dict(
        zip(numbers, tokenize_texts(tokenizer, list(paired.values()), "text_pair", pair_invalid), strict=True)
    )
    invalid += [replace(item, index=numbers[item.index]) for item in pair_invalid]
    if not truncate:
        for index, item in enumerate(first):
            pair = second.get(index, ())
            num_tokens = len(item) + 2 + (len(pair) + 1 if index in second else 0)
            check_length(index, "text_pair" if len(pair) > len(item) else "text", num_tokens, max_length, invalid)
    raise_if_invalid(invalid)
    features = []
    for index, item in enumerate(first):
        if index in second:
            features.append(_fit_pair(tokenizer, item.ids, second[index].ids, max_length))
        else:
            features.append(fit_text(tokenizer, item.ids, max_length))
    return features


def fit_text(tokenizer: Tokenizer, ids: np.ndarray, max_length: int) -> Features:
    """The sequence of one text, cut at its end."""
    kept = ids[: max_length - 2]
    return Features(**tokenizer.assemble(kept), num_truncated=len(ids) - len(kept))


def _fit_pair(tokenizer: Tokenizer, first: np.ndarray, second: np.ndarray, max_length: int) -> Features:
    kept = truncate_pair(first, second, max_length - 3)
    return Features(**tokenizer.assemble(*kept), num_truncated=len(first) + len(second) - sum(map(len, kept)))


def tokenize_texts(
    tokenizer: Tokenizer, texts: Sequence[str], field: str, invalid: list[InvalidExample]
) -> list[Tokens]:
    """Tokenise, equal texts once; those without a token, or with half a surrogate pair, are added to `invalid`."""
    broken = {index for index, text in enumerate(texts) if not _is_utf8(text)}
    whole = ["" if index in broken else text for index, text in enumerate(texts)]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(whole))}
    distinct = tokenizer.tokenize(list(numbers))
    tokens = [distinct[numbers[text]] for text in whole]
    for index, item in enumerate(tokens):
        if index in broken:
            invalid.append(InvalidExample(index, field, "not UTF-8: it holds half of a surrogate pair"))
        elif not len(item):
            invalid.append(InvalidExample(index, field, "empty text; it needs at least one word"))
    return tokens


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_length(index: int, field: str, num_tokens: int, max_tokens: int, invalid: list[InvalidExample]) -> None:
    """Add to `invalid` what is longer than the model can read."""
    if num_tokens > max_tokens:
        reason = f"text too long: {num_tokens} tokens came, {max_tokens} fit; shorten it or ask for truncation"
        invalid.append(InvalidExample(index, field, reason))


def raise_if_invalid(invalid: list[InvalidExample]) -> None:
    """Raise InvalidExamplesError for what was collected, in the order of the examples."""
    if invalid:
        raise InvalidExamplesError(sorted(invalid, key=lambda item: item.index))


def truncate_pair(first: np.ndarray, second: np.ndarray, max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Pop tokens from the end of the longer one until both fit; of two equally long ones, from the second.

    Source: `_truncate_seq_pair` of google-research/bert run_classifier.py.
    """
    num_first, num_second = len(first), len(second)
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
    return first[:num_first], second[:num_second]
