"""Prompts that a request names, or that its `input_type` chooses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bertline.v1 import encoder_pb2 as pb
from serving.core.errors import Violation
from tasks.base import AnyTask
from tasks.prompts import InputType

INPUT_TYPES: dict[int, InputType] = {pb.INPUT_TYPE_QUERY: "query", pb.INPUT_TYPE_DOCUMENT: "document"}


def prompt_name_of(request: Any, task: AnyTask) -> str | None:
    """Return the name of the prompt that a request asks for; None for the model's default prompt."""
    if request.HasField("prompt_name"):
        return str(request.prompt_name)
    kind = INPUT_TYPES.get(request.input_type)
    return str(task.settings.prompt_name_for(kind)) if kind else None


def prompt_violations(request: Any, task: AnyTask, *, exclusive: bool = True) -> Iterator[Violation]:
    """Yield what is wrong with `prompt_name` and `input_type` of a request.

    Args:
        exclusive: False if a request may have both.
    """
    if request.input_type not in (pb.INPUT_TYPE_UNSPECIFIED, *INPUT_TYPES):
        yield Violation("input_type", f"unknown: {request.input_type} (1 for query, 2 for document)")
    elif exclusive and request.input_type and request.HasField("prompt_name"):
        yield Violation("input_type", "set together with `prompt_name`; give one of them")
    try:
        task.settings.prompt(prompt_name_of(request, task))
    except ValueError as error:
        yield Violation("prompt_name", str(error))
