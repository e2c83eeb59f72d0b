"""Steps that tasks with prompts share: tokenize texts behind a prompt, and split them into windows that begin so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tasks._encode import EMPTY, check_length, fit_text, raise_if_invalid, tokenize_texts
from tasks.base import InvalidExample
from tasks.features import Features
from tasks.text.tokenizer import Tokenizer, Tokens
from tasks.text.windows import window_bounds

_NO_IDS = np.zeros(0, np.int64)


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], max_length: int, *, truncate: bool, prompt: str = ""
) -> list[Features]:
    """Return one sequence of at most `max_length` tokens for each text, behind a prompt.

    Raises:
        InvalidExamplesError: naming each `text` that is empty or, without `truncate`, too long.
    """
    invalid: list[InvalidExample] = []
    tokens = tokenize_fitting(tokenizer, texts, max_length, invalid, truncate=truncate, prompt=prompt)
    raise_if_invalid(invalid)
    return [fit_text(tokenizer, item, max_length) for item in tokens]


def tokenize_fitting(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    max_length: int,
    invalid: list[InvalidExample],
    *,
    truncate: bool,
    prompt: str = "",
    field: str = "text",
    num_more: int = 0,
    ids_only: bool = True,
) -> list[Tokens]:
    """Tokenize texts for sequences of `max_length` tokens, behind a prompt.

    Args:
        invalid: receives texts that are empty, not UTF-8 or, without `truncate`, too long.
        field: name of the texts in `invalid`.
        num_more: tokens of each sequence besides the text and the special tokens.
        ids_only: see `Tokenizer.tokenize`.
    """
    stop_after = None if truncate else max_length
    options = {"ids_only": ids_only, "max_ids": max_length, "stop_after": stop_after}
    tokens = tokenize_prompted(tokenizer, texts, prompt, field, invalid, **options)
    if not truncate:
        for index, item in enumerate(tokens):
            length = tokenizer.single.length(item) + num_more
            check_length(index, field, length, max_length, invalid, is_complete=item.is_complete)
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
