"""Checks of a fake server: invalid inputs, and numbers of tokens."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from bertline.testing._answers import prompt_of, tokens
from bertline.testing._faults import Refusal
from bertline.testing._models import FakeModel
from bertline.v1 import encoder_pb2 as pb

_OF_TEXTS = ("Embed", "EmbedSparse", "EmbedTokens", "FillMask", "ZeroShot")
"""RPCs whose inputs are single texts."""
_ANY_LENGTH = ("Answer", "Rerank", "Tag", "Tokenize")
"""RPCs that accept texts of any length."""

Texts = dict[str, str]
"""Texts that a model reads together, by path in the input."""


def check(method: str, request: Any, model: FakeModel, refused: Mapping[str, str]) -> tuple[list[int], list[int]]:
    """Check a request as a real server does, and refuse the texts that a test names.

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
    _refuse(list(_invalid_fields(method, request, model)))
    any_length = method in _ANY_LENGTH or getattr(request, "windows", False)
    max_length = sys.maxsize if any_length else model.max_seq_length
    violations, read, cut = [], [], []
    for place, item in _inputs(method, request):
        sequences = _sequences(method, item, request)
        invalid = [(name, refused[text]) for name, text in _texts(item).items() if text in refused]
        invalid = invalid or list(
            _invalid_parts(method, item, sequences, max_length, truncate=_truncates(method, request, model))
        )
        if method == "ZeroShot":  # the same text is part of several sequences
            invalid = list({name: (name, reason) for name, reason in invalid}.values())
        violations += [(f"{place}{name}", reason) for name, reason in dict.fromkeys(invalid)]
        lengths = [_length(texts) for texts in sequences]
        cut.append(sum(max(0, length - max_length) for length in lengths))
        read.append(sum(lengths) - cut[-1])
    _refuse(violations)
    return read, cut


def _truncates(method: str, request: Any, model: FakeModel) -> bool:
    """Return whether long inputs are truncated: as the request says, or else the model's manifest."""
    if method == "Tokenize" or not request.HasField("truncate"):
        return bool(model.manifest.get("truncate", False))
    return bool(request.truncate)


def _refuse(violations: list[tuple[str, str]]) -> None:
    if violations:
        more = f" (and {len(violations) - 3} more)" if len(violations) > 3 else ""
        named = "; ".join(f"{place}: {reason}" for place, reason in violations[:3])
        raise Refusal("INVALID_ARGUMENT", named + more, violations)


def _invalid_fields(method: str, request: Any, model: FakeModel) -> Iterator[tuple[str, str]]:
    """Yield invalid fields other than inputs."""
    if method == "Rerank":
        yield from _invalid_label(request.label, model)
    elif method == "ZeroShot":
        yield from _invalid_labels(request)
    elif method == "Embed":
        yield from _invalid_options(request, model)
    elif method == "EmbedSparse":
        yield from _invalid_prompt(request, model)
    elif method == "EmbedTokens":
        yield from _invalid_prompt(request, model, exclusive=False)
        if request.format not in (pb.VECTOR_FORMAT_UNSPECIFIED, pb.VECTOR_FORMAT_FLOAT16):
            yield "format", f"unsupported: {request.format}"


def _invalid_labels(request: Any) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the labels and the template of ZeroShot."""
    least = (1 if request.multi_label else 2) if request.texts else 0
    if len(request.labels) < least:
        yield "labels", f"too few: `{len(request.labels)}`; give at least {least}"
    yield from ((f"labels[{index}]", "blank") for index, label in enumerate(request.labels) if not label.strip())
    if len(set(request.labels)) < len(request.labels):
        yield "labels", "given twice"
    if request.template and request.template.count("{}") != 1:
        yield "template", "needs one `{}`, which stands for the label"
    if len(request.template) > 1024:
        yield "template", "longer than 1024 characters; shorten it"


def _invalid_label(label: str, model: FakeModel) -> Iterator[tuple[str, str]]:
    labels = model.labels_for(model.task)
    if model.task and label and not labels:
        yield "label", f"is for models with labels: `{label}`"
    elif labels and label not in labels and (label or list(labels) not in (["0", "1"], ["LABEL_0", "LABEL_1"])):
        yield "label", f"name the label that means that a document fits: {', '.join(labels)}"


def _invalid_options(request: Any, model: FakeModel) -> Iterator[tuple[str, str]]:
    """Yield invalid options of Embed."""
    if request.dimensions > model.dim:
        yield "dimensions", f"{request.dimensions} requested, this model has {model.dim}"
    if request.format not in pb.VectorFormat.values():
        yield "format", f"unknown: {request.format}"
    if request.format == pb.VECTOR_FORMAT_INT8 and not model.manifest.get("small_vectors", True):
        yield "format", f"{model} has no scales for int8"
    if request.window_stride and not request.windows:
        yield "window_stride", "needs `windows`"
    wrong_prompt = list(_invalid_prompt(request, model))
    yield from wrong_prompt
    if request.windows and not wrong_prompt:
        length, room = len(tokens(prompt_of(model, request))), model.max_seq_length - 2
        if 2 * length > room:
            yield (
                "windows",
                f"the prompt has `{length}` tokens, more than half of a window of {room}; set `prompt_name` to ''",
            )


def _invalid_prompt(request: Any, model: FakeModel, *, exclusive: bool = True) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the prompt of a request; it may not have both fields if `exclusive`."""
    if request.input_type not in pb.InputType.values():
        yield "input_type", f"unknown: {request.input_type}"
    if exclusive and request.input_type and request.HasField("prompt_name"):
        yield "input_type", "set together with `prompt_name`"
    try:
        prompt_of(model, request)
    except KeyError:
        known = ", ".join(model.manifest.get("settings", {}).get("prompts", {})) or "none"
        yield "prompt_name", f"unknown prompt: `{request.prompt_name}` (prompts of this model: {known})"


def _inputs(method: str, request: Any) -> list[tuple[str, Any]]:
    """Return each input after its path in the request."""
    name = "texts" if method in _OF_TEXTS else "inputs"
    return [(f"{name}[{index}]", item) for index, item in enumerate(getattr(request, name))]


def _texts(item: Any) -> Texts:
    """Return the strings of an input that are set."""
    if isinstance(item, str):
        return {"": item}
    found = {}
    for field, value in item.ListFields():
        values = {"": value} if isinstance(value, str) else {f"[{number}]": text for number, text in enumerate(value)}
        found.update({f".{field.name}{number}": text for number, text in values.items()})
    return found


def _sequences(method: str, item: Any, request: Any) -> list[Texts]:
    """Return the sequences that a model reads: one per choice, context or document."""
    if method == "ZeroShot":
        template = request.template or "This example is {}."
        return [
            {"": item, f".labels[{index}]": template.replace("{}", name)} for index, name in enumerate(request.labels)
        ]
    if isinstance(item, str):
        return [{"": item}]
    if method == "Choose":
        before = {f".{name}": text for name in ("context", "question") if (text := getattr(item, name))}
        return [before | {f".choices[{number}]": choice} for number, choice in enumerate(item.choices)]
    if method == "Answer":
        question = {".question": item.question}
        return [question | {f".contexts[{number}]": context} for number, context in enumerate(item.contexts)]
    if method == "Rerank":
        query = {".query": item.query}
        return [query | {f".documents[{number}]": document} for number, document in enumerate(item.documents)]
    if method == "Tag":
        return [{".words": " ".join(item.words)} if item.words else {".text": item.text}]
    return [{".text": item.text} | ({".text_pair": item.text_pair} if item.HasField("text_pair") else {})]


def _length(texts: Texts) -> int:
    """Return the number of tokens of a sequence with [CLS] and [SEP].

    Two texts have another [SEP] between them. A third text belongs to the second one, as a choice to its question.
    """
    return sum(len(tokens(text)) for text in texts.values()) + (2 if len(texts) == 1 else 3)


def _invalid_parts(
    method: str, item: Any, sequences: list[Texts], max_length: int, *, truncate: bool
) -> Iterator[tuple[str, str]]:
    """Yield path and reason of each invalid part of an input."""
    if method == "Tokenize":
        return
    if method == "Choose" and len(sequences) < 2:
        yield ".choices", f"too few: `{len(sequences)}`; at least two are needed"
    elif method == "Answer" and not sequences:
        yield ".contexts", "empty; at least one is needed"
    elif method == "Rerank" and not sequences:
        yield ".documents", "empty; at least one is needed"
    else:
        blank = [name for texts in sequences for name, text in texts.items() if not text.strip()]
        yield from ((name, "empty text; it needs at least one word") for name in blank)
        if not truncate:
            yield from _too_long(sequences, max_length)
        if (
            method == "FillMask"
            and not blank
            and "[MASK]" not in [token[0] for token in tokens(item)[: max_length - 2]]
        ):
            yield "", "no `[MASK]` among the tokens that fit"


def _too_long(sequences: list[Texts], max_length: int) -> Iterator[tuple[str, str]]:
    for texts in sequences:
        if (length := _length(texts)) > max_length:
            reason = f"text too long: `{length}` tokens (maximum `{max_length}`); shorten it or set `truncate`"
            first, *others = [len(tokens(text)) for text in texts.values()]
            yield list(texts)[-1 if sum(others) > first else 0], reason
