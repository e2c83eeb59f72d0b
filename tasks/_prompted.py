"""Steps that tasks with prompts share: encode texts behind a prompt, and split them into windows that begin so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tasks._encode import fit_text, raise_if_invalid, tokenize_fitting
from tasks.base import InvalidExample
from tasks.features import Features
from tasks.text.tokenizer import Tokenizer
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
