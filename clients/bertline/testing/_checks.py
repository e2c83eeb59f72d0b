"""What is wrong with the inputs of a request, and how many tokens they have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertline.testing._answers import tokens
from bertline.testing._faults import Refusal
from bertline.testing._models import FakeModel

_ANY_LENGTH = ("Answer", "Tag", "Tokenize")
"""RPCs that read texts of any length."""


def check(method: str, request: Any, model: FakeModel, refused: Mapping[str, str]) -> tuple[list[int], list[int]]:
    """Refuse inputs that a server would refuse, and those that are to be refused.

    Args:
        refused: text -> why.

    Returns:
        For each input its number of tokens, and how many of them are cut away.

    Raises:
        Refusal: with all violations.
    """
    violations, kept, cut = [], [], []
    for place, texts in _inputs(method, request):
        num_tokens = 2 + sum(len(tokens(text)) for text in texts.values())
        for name, text in texts.items():
            if text in refused:
                violations.append((f"{place}{name}", refused[text]))
            elif method != "Tokenize" and not text.strip():
                violations.append((f"{place}{name}", "empty text; it needs at least one word"))
        too_long = 0 if method in _ANY_LENGTH else max(0, num_tokens - model.max_seq_length)
        if too_long and not (request.truncate or getattr(request, "windows", False)):
            told = f"text too long: {num_tokens} tokens came, {model.max_seq_length} fit"
            violations.append((f"{place}{next(iter(texts))}", f"{told}; shorten it or ask for truncation"))
        cut.append(too_long if getattr(request, "truncate", False) else 0)
        kept.append(num_tokens - cut[-1])
    if violations:
        told = "; ".join(f"{place}: {reason}" for place, reason in violations[:3])
        raise Refusal("INVALID_ARGUMENT", told, violations)
    return kept, cut


def _inputs(method: str, request: Any) -> list[tuple[str, dict[str, str]]]:
    """For each input where it stands, and its texts by field."""
    if method in ("Embed", "FillMask"):
        return [(f"texts[{index}]", {"": text}) for index, text in enumerate(request.texts)]
    return [(f"inputs[{index}]", _fields(item)) for index, item in enumerate(request.inputs)]


def _fields(item: Any) -> dict[str, str]:
    """The strings of an input that are set, by their path in it."""
    found = {}
    for field, value in item.ListFields():
        values = {"": value} if isinstance(value, str) else {f"[{number}]": text for number, text in enumerate(value)}
        found.update({f".{field.name}{number}": text for number, text in values.items()})
    return found or {".text": ""}
