"""Embed: texts -> vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from bertline.v1 import encoder_pb2 as pb
from serving.core.errors import UnusableOutputError, Violation
from serving.core.models import Model
from serving.endpoints.base import TextEndpoint, raise_violations
from serving.endpoints.wire import header
from tasks.base import AnyTask
from tasks.embedding import Embedding, Pooling
from tasks.prompts import InputType
from tasks.small_vectors import VectorFormat

POOLINGS = {pb.Pooling.Value(f"POOLING_{name.upper()}"): name for name in get_args(Pooling)}
FORMATS: dict[int, VectorFormat] = {
    pb.VECTOR_FORMAT_UNSPECIFIED: "float32",
    pb.VECTOR_FORMAT_FLOAT16: "float16",
    pb.VECTOR_FORMAT_INT8: "int8",
    pb.VECTOR_FORMAT_BINARY: "binary",
}
INPUT_TYPES: dict[int, InputType] = {pb.INPUT_TYPE_QUERY: "query", pb.INPUT_TYPE_DOCUMENT: "document"}
VECTORS = pb.EmbedReply.VECTORS_FIELD_NUMBER
MAX_WINDOWS_PER_TOKEN = 4
"""Maximum number of windows that a token is part of. It limits the cost of a text to a multiple of its length."""


class Embed(TextEndpoint):
    """Texts -> vectors."""

    name = "Embed"
    task = Embedding.name
    reply_type = pb.EmbedReply
    inputs = "texts"
    returns_vectors = True

    def task_for(self, request: pb.EmbedRequest, model: Model) -> Embedding:
        raise_violations(_violations(request, model))
        task: Any = model.task
        if request.HasField("normalize"):
            task = task.with_settings(normalize=request.normalize)
        prompt_name = prompt_name_of(request, task)
        is_small = request.format != pb.VECTOR_FORMAT_UNSPECIFIED
        if not (request.windows or request.dimensions or is_small) and prompt_name is None:  # `replace` takes time
            return task  # type: ignore[no-any-return]
        dimensions, small = request.dimensions or model.manifest.hidden_size, model.manifest.small_vectors
        return replace(
            task,
            windows=request.windows,
            window_stride=request.window_stride,
            dimensions=dimensions,
            prompt_name=prompt_name,
            format=FORMATS[request.format],
            scales=small.scales_for(dimensions) if small and request.format == pb.VECTOR_FORMAT_INT8 else None,
        )

    def windowed_fields(self, request: pb.EmbedRequest) -> frozenset[str]:
        return frozenset({"text"} if request.windows else ())

    def result(self, prediction: np.ndarray, example: Any, task: Embedding, request: pb.EmbedRequest) -> bytes:
        if task.format == "float16":
            check_float16(prediction)
        return task.to_bytes(prediction)

    def start_reply(self, results: Sequence[bytes], task: Embedding) -> pb.EmbedReply:
        if task.format == "float32":
            return pb.EmbedReply(dim=len(results[0]) // 4 if results else 0)
        return pb.EmbedReply(dim=task.dimensions if results else 0, format=f"VECTOR_FORMAT_{task.format.upper()}")

    def serialized_results(self, results: Sequence[bytes]) -> Iterable[bytes]:
        return (header(VECTORS, sum(map(len, results))), *results) if results else ()


def check_float16(vectors: np.ndarray) -> None:
    """Raise UnusableOutputError if a number is too large for float16."""
    if np.abs(vectors).max(initial=0) > np.finfo(np.float16).max:
        raise UnusableOutputError(Violation("format", "a vector exceeds float16; leave it out"))


def _violations(request: pb.EmbedRequest, model: Model) -> Iterator[Violation]:
    settings: Any = model.task.settings
    hidden_size, min_stride = model.manifest.hidden_size, settings.max_seq_length // MAX_WINDOWS_PER_TOKEN
    if request.pooling not in (pb.POOLING_UNSPECIFIED, *POOLINGS):
        known = ", ".join(f"{number} for {name}" for number, name in POOLINGS.items())
        yield Violation("pooling", f"unknown: {request.pooling} ({known})")
    elif POOLINGS.get(request.pooling, settings.pooling) != settings.pooling:  # pooling is part of the graph
        yield Violation(
            "pooling",
            f"this model has `{', '.join(settings.poolings)}`, not `{POOLINGS[request.pooling]}`; leave it unset",
        )
    if request.HasField("normalize") and settings.normalize and not request.normalize:
        yield Violation("normalize", "must be true or unset: this model always returns vectors of length 1")
    wrong_prompt = list(prompt_violations(request, model.task))
    yield from wrong_prompt
    if request.windows and not wrong_prompt:
        embedding: Any = model.task
        prompted = replace(embedding, prompt_name=prompt_name_of(request, embedding))
        if problem := prompted.window_problem():  # the prompt leaves too little room
            yield Violation("windows", problem)
    if request.format not in FORMATS:
        known = ", ".join(f"{number} for {name}" for number, name in FORMATS.items())
        yield Violation("format", f"unknown: {request.format} ({known})")
    if request.format == pb.VECTOR_FORMAT_INT8 and not model.manifest.small_vectors:
        yield Violation("format", f"{model} has no scales for int8; export it with more --dev texts, or use float16")
    elif request.format == pb.VECTOR_FORMAT_INT8 and not (request.normalize or settings.normalize):
        yield Violation("format", "int8 needs vectors of length 1; set `normalize`")
    if request.dimensions > hidden_size:
        yield Violation("dimensions", f"`{request.dimensions}` is more than the {hidden_size} dimensions of this model")
    if request.window_stride and not request.windows:
        yield Violation("window_stride", "needs `windows`; set it, or leave `window_stride` unset")
    elif 0 < request.window_stride < min_stride:
        yield Violation(
            "window_stride", f"must be 0 or at least {min_stride} tokens, a quarter of the model's max_seq_length"
        )


def prompt_name_of(request: Any, task: AnyTask) -> str | None:
    """Return the name of the prompt that a request asks for; None for the default prompt of the model."""
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
