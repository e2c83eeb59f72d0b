"""Texts with what a model was trained to see before them."""

from __future__ import annotations

from collections.abc import Iterable

from bertline._inputs import read_texts
from bertline.errors import InvalidInput, InvalidItem


def with_prompt(prompt: str, texts: Iterable[str]) -> list[str]:
    """Each text after a prompt, which may be empty.

    Raises:
        InvalidInput: for blank texts; with a prompt before them, the server could not tell.
    """
    given = read_texts(texts)
    reason = "empty text; it needs at least one word"
    if blank := [InvalidItem(index, "text", reason) for index, text in enumerate(given) if not text.strip()]:
        raise InvalidInput.of(blank)
    return [prompt + text for text in given]
