"""What callers give, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MappingView, Sequence, Set
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np

from bertline.errors import InvalidInput, InvalidItem
from bertline.v1 import encoder_pb2 as pb

MAX_COUNT = (1 << 32) - 1
"""What the messages can hold: more than there are candidates."""
MAX_TIMEOUT_S = 1e9
"""Three decades: gRPC cannot count to a deadline that is much farther away."""
_NOT_UNICODE = "contains a lone surrogate, which UTF-8 cannot express"

ItemT = TypeVar("ItemT")


def read_items(values: Iterable[ItemT], name: str) -> list[ItemT]:
    """Return inputs as a list.

    Raises:
        TypeError: for a single string, and for what has no order or would give its keys.
    """
    if isinstance(values, str):
        raise TypeError(f"`{name}` must be a list, one string came; write `[text]`")
    if isinstance(values, bytes | bytearray | memoryview):
        raise TypeError(f"`{name}` must be a list of strings, a {type(values).__name__} came; write `[text.decode()]`")
    if isinstance(values, Mapping) or _is_frame(values):
        raise TypeError(
            f"`{name}` must be a list, a {type(values).__name__} came, of which only the keys would be sent"
        )
    if isinstance(values, Set) and not isinstance(values, MappingView):
        raise TypeError(f"`{name}` must be a list, a {type(values).__name__} came, which has no order; sort it")
    if not isinstance(values, Iterable) and not hasattr(values, "__getitem__"):
        raise TypeError(f"`{name}` must be a list, a {type(values).__name__} came")
    return list(values)


def _is_frame(values: Any) -> bool:
    """Whether it is a table of pandas, which iterates over the names of its columns."""
    return hasattr(values, "columns") and hasattr(values, "keys")


def read_texts(values: Iterable[str]) -> list[str]:
    """A list of texts."""
    texts = read_items(values, "texts")
    try:
        "".join(texts).encode()  # all at once: a tenth of the time
    except (TypeError, UnicodeEncodeError):
        _check([{"text": text} for text in texts])
    return texts


def read_texts_or_pairs(values: Iterable[str | tuple[str, str]]) -> list[pb.TextInput]:
    """A list of texts, of pairs, or of both."""
    rows = []
    for index, item in enumerate(read_items(values, "inputs")):
        fields = ("text", "text_pair") if isinstance(item, tuple | list) else ("text",)
        rows.append(dict(zip(fields, _several(index, item, (2,)) if len(fields) > 1 else (item,), strict=True)))
    _check(rows)
    return [pb.TextInput(**row) for row in rows]


def read_questions(values: Iterable[tuple[str, str | Sequence[str]]]) -> list[pb.AnswerInput]:
    """A list of questions with a context, or several."""
    rows = []
    for index, item in enumerate(read_items(values, "inputs")):
        question, given = _several(index, item, (2,))
        contexts = (
            {"context": given} if isinstance(given, str) else _numbered("contexts", _list(index, "contexts", given))
        )
        rows.append({"question": question} | contexts)
    _check(rows)
    return [pb.AnswerInput(question=question, contexts=texts) for question, *texts in map(dict.values, rows)]


def read_choices(values: Iterable[tuple[Any, ...]]) -> list[pb.ChooseInput]:
    """A list of (question, choices) or (context, question, choices)."""
    rows = []
    for index, item in enumerate(read_items(values, "inputs")):
        *texts, choices = _several(index, item, (2, 3))
        rows.append((*[""] * (2 - len(texts)), *texts, _list(index, "choices", choices)))
    _check([{"context": row[0], "question": row[1]} | _numbered("choices", row[2]) for row in rows])
    return [pb.ChooseInput(context=context, question=question, choices=choices) for context, question, choices in rows]


def read_texts_or_words(values: Iterable[str | Sequence[str]]) -> list[pb.TagInput]:
    """A list of texts, of lists of words, or of both."""
    items: list[Any] = read_items(values, "inputs")
    _check([_numbered("words", item) if isinstance(item, tuple | list) else {"text": item} for item in items])
    return [pb.TagInput(words=item) if isinstance(item, tuple | list) else pb.TagInput(text=item) for item in items]


def _several(index: int, item: Any, counts: Sequence[int]) -> Sequence[Any]:
    if isinstance(item, tuple | list) and len(item) in counts:
        return item
    came = f"{len(item)} values" if isinstance(item, tuple | list) else f"a {type(item).__name__}"
    wanted = "a pair" if counts == (2,) else "a question with choices"
    raise TypeError(f"input {index}: {wanted} is needed, {came} came; for a single one write `[(a, b)]`")


def _list(index: int, field: str, values: Any) -> list[Any]:
    if not isinstance(values, tuple | list):
        raise TypeError(f"input {index}, {field}: a list of strings is needed, a {type(values).__name__} came")
    return list(values)


def _numbered(field: str, values: Sequence[Any]) -> dict[str, Any]:
    return {f"{field}[{number}]": value for number, value in enumerate(values)}


def _check(rows: Sequence[dict[str, Any]]) -> None:
    """Refuse what is not a string, or cannot be written as UTF-8.

    Args:
        rows: for each input its strings by field.
    """
    invalid = []
    for index, row in enumerate(rows):
        for field, value in row.items():
            if not isinstance(value, str):
                raise TypeError(f"input {index}, {field}: a string is needed, a {type(value).__name__} came")
            if not _is_unicode(value):
                invalid.append(InvalidItem(index, field, _NOT_UNICODE))
    if invalid:
        raise InvalidInput.of(invalid)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_option(name: str, value: Any) -> str:
    """A string that is not an input."""
    if not isinstance(value, str):
        raise TypeError(f"`{name}`: a string is needed, `{value!r}` came")
    if not _is_unicode(value):
        raise InvalidInput.of([InvalidItem(None, name, _NOT_UNICODE)])
    return value


def read_model(model: str, version: str) -> pb.ModelRef:
    """Which model is asked for."""
    return pb.ModelRef(name=read_option("model", model), version=read_option("version", version))


def read_timeout(value: float) -> float:
    """Seconds that a request may take."""
    if not isinstance(value, Real):
        raise TypeError(f"`timeout` must be a number of seconds: `{value!r}`")
    if not 0 < value <= MAX_TIMEOUT_S:
        raise ValueError(f"`timeout` must be above 0 seconds, and at most {MAX_TIMEOUT_S:g}: `{value}`")
    return value


def read_number(name: str, value: int) -> int:
    """A whole number of at least 1."""
    if not isinstance(value, Integral):
        raise TypeError(f"`{name}` must be a whole number: `{value!r}`")
    if value < 1:
        raise ValueError(f"`{name}` must be at least 1: `{value}`")
    return int(value)


def read_count(name: str, value: int | None) -> int:
    """A number of at least 1; 0, which leaves it to the server, for None."""
    return 0 if value is None else min(read_number(name, value), MAX_COUNT)


def read_flag(name: str, value: bool | None) -> bool | None:
    """Whether or not, or None."""
    if not (value is None or isinstance(value, (bool, np.bool_)) or (isinstance(value, int) and value in (0, 1))):
        raise TypeError(f"`{name}` must be True or False: `{value!r}`")
    return value
