"""What is wrong with the inputs of a request, and how many tokens they have."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from bertline.testing._answers import tokens
from bertline.testing._faults import Refusal
from bertline.testing._models import FakeModel

_ANY_LENGTH = ("Answer", "Tag", "Tokenize")
"""RPCs that read texts of any length."""

Texts = dict[str, str]
"""Texts that a model reads together, by their path in the input."""


def check(method: str, request: Any, model: FakeModel, refused: Mapping[str, str]) -> tuple[list[int], list[int]]:
    """Refuse inputs that a server would refuse, and those that are to be refused.

    Args:
        refused: text -> why.

    Returns:
        For each input its number of tokens, and how many of them are cut away.

    Raises:
        Refusal: with all violations.
    """
    _refuse(list(_wrong_fields(method, request, model)))
    any_length = method in _ANY_LENGTH or getattr(request, "windows", False)
    most = sys.maxsize if any_length else model.max_seq_length
    violations, kept, cut = [], [], []
    for place, item in _inputs(method, request):
        sequences = _sequences(method, item)
        wrong = [(name, refused[text]) for name, text in _texts(item).items() if text in refused]
        wrong = wrong or list(_wrong(method, item, sequences, most, truncate=_truncates(method, request, model)))
        violations += [(f"{place}{name}", reason) for name, reason in dict.fromkeys(wrong)]
        lengths = [_length(texts) for texts in sequences]
        cut.append(sum(max(0, length - most) for length in lengths))
        kept.append(sum(lengths) - cut[-1])
    _refuse(violations)
    return kept, cut


def _truncates(method: str, request: Any, model: FakeModel) -> bool:
    """Whether what is too long is cut: as the request says, else as the model's manifest does."""
    if method == "Tokenize" or not request.HasField("truncate"):
        return bool(model.manifest.get("truncate", False))
    return bool(request.truncate)


def _refuse(violations: list[tuple[str, str]]) -> None:
    if violations:
        more = f" (and {len(violations) - 3} more)" if len(violations) > 3 else ""
        told = "; ".join(f"{place}: {reason}" for place, reason in violations[:3])
        raise Refusal("INVALID_ARGUMENT", told + more, violations)


def _wrong_fields(method: str, request: Any, model: FakeModel) -> Iterator[tuple[str, str]]:
    """What is wrong beside the inputs."""
    if method != "Embed":
        return
    if request.dimensions > model.dim:
        yield "dimensions", f"{request.dimensions} were asked for, this model has {model.dim}"
    if request.window_stride and not request.windows:
        yield "window_stride", "there is none without `windows`"


def _inputs(method: str, request: Any) -> list[tuple[str, Any]]:
    """Each input, after where it stands."""
    name = "texts" if method in ("Embed", "FillMask") else "inputs"
    return [(f"{name}[{index}]", item) for index, item in enumerate(getattr(request, name))]


def _texts(item: Any) -> Texts:
    """The strings of an input that are set."""
    if isinstance(item, str):
        return {"": item}
    found = {}
    for field, value in item.ListFields():
        values = {"": value} if isinstance(value, str) else {f"[{number}]": text for number, text in enumerate(value)}
        found.update({f".{field.name}{number}": text for number, text in values.items()})
    return found


def _sequences(method: str, item: Any) -> list[Texts]:
    """What a model reads of an input: each choice, and each context, is a sequence of its own."""
    if isinstance(item, str):
        return [{"": item}]
    if method == "Choose":
        before = {f".{name}": text for name in ("context", "question") if (text := getattr(item, name))}
        return [before | {f".choices[{number}]": choice} for number, choice in enumerate(item.choices)]
    if method == "Answer":
        asked = {".question": item.question}
        return [asked | {f".contexts[{number}]": context} for number, context in enumerate(item.contexts)]
    if method == "Tag":
        return [{".words": " ".join(item.words)} if item.words else {".text": item.text}]
    return [{".text": item.text} | ({".text_pair": item.text_pair} if item.HasField("text_pair") else {})]


def _length(texts: Texts) -> int:
    """Tokens of a sequence: [CLS] and [SEP], another [SEP] after the first of two; a third text is one with the
    second, as a question with its choice."""
    return sum(len(tokens(text)) for text in texts.values()) + (2 if len(texts) == 1 else 3)


def _wrong(method: str, item: Any, sequences: list[Texts], most: int, *, truncate: bool) -> Iterator[tuple[str, str]]:
    """What a server finds wrong with an input, after where it is in it."""
    if method == "Tokenize":
        return
    if method == "Choose" and len(sequences) < 2:
        yield ".choices", f"{len(sequences)} of them; at least two are needed"
    elif method == "Answer" and not sequences:
        yield ".contexts", "none; at least one is needed"
    else:
        blank = [name for texts in sequences for name, text in texts.items() if not text.strip()]
        yield from ((name, "empty text; it needs at least one word") for name in blank)
        if not truncate:
            yield from _too_long(sequences, most)
        if method == "FillMask" and not blank and "[MASK]" not in [token[0] for token in tokens(item)[: most - 2]]:
            yield "", "no `[MASK]` among the tokens that fit"


def _too_long(sequences: list[Texts], most: int) -> Iterator[tuple[str, str]]:
    for texts in sequences:
        if (length := _length(texts)) > most:
            reason = f"text too long: {length} tokens came, {most} fit; shorten it or ask for truncation"
            first, *others = [len(tokens(text)) for text in texts.values()]
            yield list(texts)[-1 if sum(others) > first else 0], reason
