"""Parts that several operations share: options of requests, checks of replies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from bertline._convert import Call
from bertline._inputs import read_flag, read_model, read_option
from bertline.errors import InvalidItem, ServerError
from bertline.v1 import encoder_pb2 as pb

InputType = Literal["query", "document"]
DTYPES = {"float32": "<f4", "float16": "<f2", "int8": "i1", "binary": "u1"}
"""Types of the numbers of vectors by format."""
_FORMATS = {
    pb.VECTOR_FORMAT_UNSPECIFIED: "float32",
    pb.VECTOR_FORMAT_FLOAT16: "float16",
    pb.VECTOR_FORMAT_INT8: "int8",
    pb.VECTOR_FORMAT_BINARY: "binary",
}


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """How `bertline bench` calls the models of a task."""

    task: str
    method: str
    """Method of the client; rows of files have the columns of its command."""
    call: Callable[..., Call[Any]]
    """Returns a call, given inputs, model, version and `truncate`."""
    of_text: Callable[[str], Any] = lambda text: text
    """Makes an input of the method from a text."""


def request_of(message: Any, model: str, version: str, truncate: bool | None, **fields: Any) -> Callable[..., Any]:
    """Return a function that makes the request of an operation, given the field of its inputs."""
    ref = read_model(model, version)
    return partial(message, model=ref, truncate=read_flag("truncate", truncate), **fields)


def prompt_fields(prompt_name: str | None, input_type: InputType | None) -> dict[str, Any]:
    """Return the fields of a request that choose a prompt."""
    if input_type is not None:
        check_choice("input_type", input_type, InputType)
    return {
        "prompt_name": None if prompt_name is None else read_option("prompt_name", prompt_name),
        "input_type": f"INPUT_TYPE_{input_type.upper()}" if input_type else None,
    }


def format_field(format: str, allowed: Any) -> str | None:
    """Return the field of a request for vectors of a format, one of a Literal."""
    check_choice("format", format, allowed)
    return None if format == "float32" else f"VECTOR_FORMAT_{format.upper()}"


def check_choice(name: str, value: Any, allowed: Any) -> None:
    """Raise ValueError if a value is none of a Literal."""
    if value not in get_args(allowed):
        raise ValueError(f"unknown {name}: `{value}` (one of: {', '.join(get_args(allowed))})")


def check_format(reply: Any, format: str) -> None:
    """Raise ServerError if vectors have another format than was asked for."""
    sent = _FORMATS.get(reply.format, f"unknown format {reply.format}")
    if sent != format:
        raise ServerError(f"the server sent vectors as {sent}, not as {format}; older servers know float32 only")


def sum_of_scores(items: Iterable[Any]) -> float:
    """Return the sum of scores, which is finite if they are."""
    return sum(item.score for item in items)


def check_finite(sums: Iterable[float]) -> None:
    """Raise ServerError if a sum of scores is not finite. Each input has one sum."""
    if bad := [index for index, value in enumerate(sums) if not math.isfinite(value)]:
        raise reply_error(bad, "a score is not finite")


def reply_error(indices: Iterable[int], reason: str) -> ServerError:
    """Return the error for inputs without a usable reply."""
    return ServerError.of([InvalidItem(index, "reply", reason) for index in indices])
