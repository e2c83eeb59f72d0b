"""Fit one or two texts into max_seq_length; shared by the tasks that read a text whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tasks.base import InvalidExample, InvalidExamplesError
from tasks.features import Features
from tasks.tokenizer import Tokenizer, Tokens

NOT_UTF8 = "not UTF-8: it holds half of a surrogate pair"
EMPTY = "empty text; it needs at least one word"


def encode_pairs(
    tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str | None], max_length: int, *, truncate: bool
) -> list[Features]:
    """A sequence for each text, or text with its pair, of at most `max_length` tokens.

    Raises:
        InvalidExamplesError: naming the texts (`text` or `text_pair`) that are empty or, without `truncate`, too long;
            of two that are too long together, the longer one.
    """
    invalid: list[InvalidExample] = []
    reading = Reading(keep=max_length, enough=None if truncate else max_length)
    first = tokenize_texts(tokenizer, texts, "text", invalid, reading)
    paired = {index: pair for index, pair in enumerate(pairs) if pair is not None}
    numbers = list(paired)
    pair_invalid: list[InvalidExample] = []
    found = tokenize_texts(tokenizer, list(paired.values()), "text_pair", pair_invalid, reading)
    second = dict(zip(numbers, found, strict=True))
    invalid += [replace(item, index=numbers[item.index]) for item in pair_invalid]
    if not truncate:
        for index, item in enumerate(first):
            _check_pair(index, item, second.get(index), max_length, invalid)
    raise_if_invalid(invalid)
    features = []
    for index, item in enumerate(first):
        if index in second:
            features.append(_fit_pair(tokenizer, item, second[index], max_length))
        else:
            features.append(fit_text(tokenizer, item, max_length))
    return features


def _check_pair(
    index: int, first: Tokens, second: Tokens | None, max_length: int, invalid: list[InvalidExample]
) -> None:
    if second is None:
        check_length(index, "text", len(first) + 2, max_length, invalid, is_whole=first.is_whole)
        return
    field, longer, shorter = ("text_pair", second, first) if len(second) > len(first) else ("text", first, second)
    is_whole = first.is_whole and second.is_whole
    check_length(index, field, len(longer) + len(shorter) + 3, max_length, invalid, is_whole=is_whole)


def fit_text(tokenizer: Tokenizer, tokens: Tokens, max_length: int) -> Features:
    """The sequence of one text, cut at its end."""
    kept = tokens.ids[: max_length - 2]
    return Features(**tokenizer.assemble(kept), num_truncated=len(tokens) - len(kept))


def _fit_pair(tokenizer: Tokenizer, first: Tokens, second: Tokens, max_length: int) -> Features:
    num_first, num_second = fit_pair(len(first), len(second), max_length - 3)
    arrays = tokenizer.assemble(first.ids[:num_first], second.ids[:num_second])
    return Features(**arrays, num_truncated=len(first) + len(second) - num_first - num_second)


@dataclass(frozen=True, slots=True)
class Reading:
    """Options of `Tokenizer.tokenize` that say how much of the texts is tokenised."""

    ids_only: bool = True
    keep: int | None = None
    enough: int | None = None


def tokenize_texts(
    tokenizer: Tokenizer, texts: Sequence[str], field: str, invalid: list[InvalidExample], reading: Reading
) -> list[Tokens]:
    """Tokenise, equal texts once; those without a token, or with half a surrogate pair, are added to `invalid`."""
    broken = {index for index, text in enumerate(texts) if not is_utf8(text)}
    whole = ["" if index in broken else text for index, text in enumerate(texts)]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(whole))}
    distinct = tokenizer.tokenize(list(numbers), ids_only=reading.ids_only, keep=reading.keep, enough=reading.enough)
    tokens = [distinct[numbers[text]] for text in whole]
    for index, item in enumerate(tokens):
        if index in broken:
            invalid.append(InvalidExample(index, field, NOT_UTF8))
        elif not len(item):
            invalid.append(InvalidExample(index, field, EMPTY))
    return tokens


def is_utf8(text: str) -> bool:
    """Whether a text has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_length(
    index: int, field: str, num_tokens: int, max_tokens: int, invalid: list[InvalidExample], *, is_whole: bool = True
) -> None:
    """Add to `invalid` what is longer than the model can read.

    Args:
        is_whole: whether these are all tokens; otherwise more may have come.
    """
    if num_tokens > max_tokens:
        came = f"{num_tokens} tokens came" if is_whole else f"at least {num_tokens} tokens came"
        reason = f"text too long: {came}, {max_tokens} fit; shorten it or ask for truncation"
        invalid.append(InvalidExample(index, field, reason))


def raise_if_invalid(invalid: list[InvalidExample]) -> None:
    """Raise InvalidExamplesError for what was collected, in the order of the examples."""
    if invalid:
        raise InvalidExamplesError(sorted(invalid, key=lambda item: item.index))


def fit_pair(num_first: int, num_second: int, max_tokens: int) -> tuple[int, int]:
    """Return how many tokens of each text are left when tokens are popped from the end of the longer one until both
    fit; of two equally long ones, from the second.

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
