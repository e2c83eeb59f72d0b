"""Prompts before texts."""

from __future__ import annotations

from collections.abc import Iterable

from bertline._inputs import read_texts
from bertline.errors import InvalidInput, InvalidItem


def with_prompt(prompt: str, texts: Iterable[str]) -> list[str]:
    """Return the texts with a prompt before each.

    Args:
        prompt: text to put before each; may be empty.
        texts: texts of any number.

    Raises:
        InvalidInput: for blank texts: after a prompt, the server cannot recognise them.
    """
    checked = read_texts(texts)
    reason = "empty text; it needs at least one word"
    if blank := [InvalidItem(index, "text", reason) for index, text in enumerate(checked) if not text.strip()]:
        raise InvalidInput.of(blank)
    return [prompt + text for text in checked]
