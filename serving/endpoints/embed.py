"""Embed: texts -> vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bertline.v1 import encoder_pb2 as pb
from serving.core.errors import Violation
from serving.endpoints.base import Rpc, refuse_any
from serving.endpoints.wire import header
from tasks.base import InvalidExample
from tasks.embedding import Embedding

if TYPE_CHECKING:
    from serving.core.models import Model

POOLINGS = {pb.POOLING_CLS: "cls", pb.POOLING_MEAN: "mean"}
VECTORS = pb.EmbedReply.VECTORS_FIELD_NUMBER
MAX_READINGS = 4
"""Most windows that may read the same token, so that the length of a text bounds its memory and time."""


class Embed(Rpc):
    """Texts -> vectors."""

    name = "Embed"
    task = Embedding.name
    request_type = pb.EmbedRequest
    reply_type = pb.EmbedReply
    inputs = "texts"

    def specialise(self, model: Model, request: pb.EmbedRequest) -> Embedding:
        refuse_any(_violations(model, request))
        task: Any = model.task
        if request.HasField("normalize"):
            task = task.with_settings(normalize=request.normalize)
        if not (request.windows or request.dimensions):  # `replace` takes several microseconds
            return task  # type: ignore[no-any-return]
        return replace(
            task, windows=request.windows, window_stride=request.window_stride, dimensions=request.dimensions
        )

    def examples(self, request: pb.EmbedRequest, task: Embedding) -> list[str]:
        return list(request.texts)

    def windowed(self, request: pb.EmbedRequest) -> frozenset[str]:
        return frozenset({"text"} if request.windows else ())

    def field(self, invalid: InvalidExample, request: pb.EmbedRequest) -> str:
        return f"texts[{invalid.index}]"

    def result(self, prediction: np.ndarray, example: Any, task: Embedding, request: pb.EmbedRequest) -> bytes:
        return prediction.astype("<f4").tobytes()

    def reply(self, results: Sequence[bytes]) -> pb.EmbedReply:
        return pb.EmbedReply(dim=len(results[0]) // 4 if results else 0)

    def elements(self, results: Sequence[bytes]) -> Iterable[bytes]:
        return (header(VECTORS, sum(map(len, results))), *results) if results else ()


def _violations(model: Model, request: pb.EmbedRequest) -> Iterator[Violation]:
    settings: Any = model.task.settings
    hidden_size, least_stride = model.manifest.hidden_size, settings.max_seq_length // MAX_READINGS
    if request.pooling not in (pb.POOLING_UNSPECIFIED, *POOLINGS):
        known = ", ".join(f"{number} for {name}" for number, name in POOLINGS.items())
        yield Violation("pooling", f"unknown: {request.pooling} ({known})")
    elif POOLINGS.get(request.pooling, settings.pooling) != settings.pooling:  # the graph pools: there is no other
        yield Violation(
            "pooling", f"this model has `{settings.pooling}`, not `{POOLINGS[request.pooling]}`; leave it unset"
        )
    if request.HasField("normalize") and settings.normalize and not request.normalize:
        yield Violation("normalize", "this model's vectors have length 1")
    if request.dimensions > hidden_size:
        yield Violation("dimensions", f"{request.dimensions} were asked for, this model has {hidden_size}")
    if request.window_stride and not request.windows:
        yield Violation("window_stride", "there is none without `windows`")
    elif 0 < request.window_stride < least_stride:
        yield Violation("window_stride", f"at least {least_stride} tokens, a quarter of the model's max_seq_length")
