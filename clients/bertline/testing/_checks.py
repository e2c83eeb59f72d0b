"""Checks of a fake server: invalid inputs, and numbers of tokens."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from bertline.testing._answers import tokens
from bertline.testing._faults import Refusal
from bertline.testing._models import FakeModel

_ANY_LENGTH = ("Answer", "Rerank", "Tag", "Tokenize")
"""RPCs that accept texts of any length."""
_NECESSARY = {"Classify": ".text", "Regress": ".text", "Answer": ".question", "Rerank": ".query"}
"""Text that an input must have, where others are optional."""


def check(method: str, request: Any, model: FakeModel, refused: Mapping[str, str]) -> tuple[list[int], list[int]]:
    """Refuse empty texts, texts that are too long, and those that a test names.

    Args:
        method: name of the RPC.
        request: message of the call.
        model: model that reads it.
        refused: texts to refuse, with the reason.

    Returns:
        For each input, the number of tokens that are read, and the number that are truncated.

    Raises:
        Refusal: with all violations.
    """
    any_length = method in _ANY_LENGTH or (method == "Embed" and request.windows)
    limit = sys.maxsize if any_length else model.max_seq_length
    truncates = model.manifest.get("truncate", False)
    if method != "Tokenize" and request.HasField("truncate"):
        truncates = request.truncate
    name = "texts" if hasattr(request, "texts") else "inputs"
    violations, read, cut = list[tuple[str, str]](), list[int](), list[int]()
    for index, item in enumerate(getattr(request, name)):
        texts = _texts(method, item)
        lengths = _lengths(texts)
        cut.append(sum(max(0, length - limit) for length in lengths))
        read.append(sum(lengths) - cut[-1])
        invalid = {path: refused[text] for path, text in texts.items() if text in refused}
        if not invalid and method != "Tokenize":
            invalid = {
                path: "empty text; it needs at least one word" for path, text in texts.items() if not text.strip()
            }
            if cut[-1] and not truncates:
                longest = max(texts, key=lambda path: len(tokens(texts[path])))
                invalid[longest] = f"text too long: `{max(lengths)}` tokens (maximum `{limit}`)"
        violations += [(f"{name}[{index}]{path}", reason) for path, reason in invalid.items()]
    if violations:
        details = "; ".join(f"{field}: {reason}" for field, reason in violations[:3])
        raise Refusal("INVALID_ARGUMENT", details, violations)
    return read, cut


def _lengths(texts: Mapping[str, str]) -> list[int]:
    """Return the number of tokens of each sequence: one for each text of a list, such as choices, with all others."""
    shared = 2 + sum(len(tokens(text)) for path, text in texts.items() if "[" not in path)
    return [shared + len(tokens(text)) for path, text in texts.items() if "[" in path] or [shared]


def _texts(method: str, item: Any) -> dict[str, str]:
    """Return the texts of an input by their path: the necessary one, and the others that are set."""
    if isinstance(item, str):
        return {"": item}
    if method == "Tag":
        return {".words": " ".join(item.words)} if item.words else {".text": item.text}
    found = {_NECESSARY[method]: ""} if method in _NECESSARY else {}
    for field, value in item.ListFields():
        values = {"": value} if isinstance(value, str) else {f"[{number}]": text for number, text in enumerate(value)}
        found.update({f".{field.name}{number}": text for number, text in values.items()})
    return found
