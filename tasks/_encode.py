"""Steps that the tasks' `encode` share: tokenize texts, collect invalid ones, fit into max_seq_length, make windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.base import InvalidExample, InvalidExamplesError
from tasks.features import Features
from tasks.text.tokenizer import Tokenizer, Tokens

NOT_UTF8 = "not UTF-8: it holds half of a surrogate pair"
EMPTY = "empty text; it needs at least one word"
_NO_IDS = np.zeros(0, np.int64)


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
        fit_pair(tokenizer, item, second[index], max_length)
        if index in second
        else fit_text(tokenizer, item, max_length)
        for index, item in enumerate(first)
    ]


def fit_text(tokenizer: Tokenizer, tokens: Tokens, max_length: int) -> Features:
    """Return the sequence of one text, cut at its end."""
    kept = tokens.ids[: tokenizer.single.capacity(max_length)]
    return Features(**tokenizer.assemble(kept), num_truncated=len(tokens) - len(kept))


def fit_pair(tokenizer: Tokenizer, first: Tokens, second: Tokens, max_length: int) -> Features:
    """Return the sequence of two texts, after tokens are popped from the end of the longer one until both fit.

    Of two equally long texts, the second loses a token.

    Source: `_truncate_seq_pair` of google-research/bert run_classifier.py.
    """
    capacity = tokenizer.pair.capacity(max_length)
    num_first = min(len(first), max(capacity - len(second), (capacity + 1) // 2))
    num_second = min(len(second), capacity - num_first)
    arrays = tokenizer.assemble(first.ids[:num_first], second.ids[:num_second])
    return Features(**arrays, num_truncated=len(first) + len(second) - num_first - num_second)


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


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], max_length: int, *, truncate: bool, prompt: str = ""
) -> list[Features]:
    """Return one sequence of at most `max_length` tokens for each text, behind a prompt.

    Raises:
        InvalidExamplesError: naming each `text` that is empty or, without `truncate`, too long.
    """
    invalid: list[InvalidExample] = []
    num_more = tokenizer.single.num_special
    tokens = tokenize_fitting(
        tokenizer, texts, "text", max_length, invalid, truncate=truncate, num_more=num_more, prompt=prompt
    )
    raise_if_invalid(invalid)
    return [fit_text(tokenizer, item, max_length) for item in tokens]


def prompt_ids_of(tokenizer: Tokenizer, prompt: str) -> np.ndarray:
    """Return the tokens of a prompt without spaces at its end, which the first token of a text may hold."""
    prompt = prompt.rstrip()
    return tokenizer.tokenize([prompt], ids_only=True)[0].ids if prompt else _NO_IDS


def prompted_windows(
    tokenizer: Tokenizer, ids: np.ndarray, *, prompt_ids: np.ndarray, capacity: int, stride: int = 0
) -> Iterator[np.ndarray]:
    """Yield the tokens of each window of a text, those of the prompt first.

    Args:
        ids: tokens of prompt and text.
        prompt_ids: tokens of the prompt.
        capacity: most tokens of a window.
        stride: tokens of the text from the start of one window to the start of the next; 0 for no overlap.
    """
    num_prompt = num_common(prompt_ids, ids)
    prompt, text, room = ids[:num_prompt], ids[num_prompt:], capacity - num_prompt
    for start, end in tokenizer.report_sequences(window_bounds(len(text), room, stride or room)):
        yield np.concatenate([prompt, text[start:end]]) if num_prompt else text[start:end]


def num_common(first: np.ndarray, second: np.ndarray) -> int:
    """Return the number of first tokens that both sequences have in common."""
    length = min(len(first), len(second))
    differs = np.flatnonzero(first[:length] != second[:length])
    return int(differs[0]) if len(differs) else length


def window_bounds(num_tokens: int, capacity: int, doc_stride: int) -> Iterator[tuple[int, int]]:
    """Yield windows (start, end) of at most `capacity` tokens that cover `num_tokens` tokens."""
    start = 0
    while True:
        end = min(start + capacity, num_tokens)
        yield start, end
        if end == num_tokens:
            return
        start += min(doc_stride, end - start)


def max_context_owner(spans: Sequence[tuple[int, int]], num_tokens: int) -> np.ndarray:
    """Return, for each token of a text, the number of the window in which it has the most context: [tokens] int64.

    Args:
        spans: the windows, (start, end) in tokens.

    Source: `_check_is_max_context` of google-research/bert run_squad.py.
    """
    best_score = np.full(num_tokens, -np.inf)
    owner = np.zeros(num_tokens, dtype=np.int64)
    for number, (start, end) in enumerate(spans):
        left = np.arange(end - start)
        score = np.minimum(left, left[::-1]) + 0.01 * (end - start)
        better = score > best_score[start:end]
        best_score[start:end][better] = score[better]
        owner[start:end][better] = number
    return owner
