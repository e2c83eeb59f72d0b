"""EmbedTokens: texts -> a vector for each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bertline.v1 import encoder_pb2 as pb
from serving.core.errors import InvalidRequestError, Violation
from serving.core.models import Model
from serving.endpoints.base import TextEndpoint, raise_violations
from serving.endpoints.embed import check_float16, prompt_name_of, prompt_violations
from serving.endpoints.wire import header
from tasks.features import Features
from tasks.small_vectors import VectorFormat, to_bytes
from tasks.token_embedding import TokenEmbedding, TokenVectors

MAX_VECTORS = 2**17
"""Maximum number of vectors in a reply: 64 MiB of 128 numbers each."""
FORMATS: dict[VectorFormat, pb.VectorFormat] = {
    "float32": pb.VECTOR_FORMAT_UNSPECIFIED,
    "float16": pb.VECTOR_FORMAT_FLOAT16,
}
_FIELDS = pb.TokenVectors.DESCRIPTOR.fields_by_name


class EmbedTokens(TextEndpoint):
    """Texts -> vectors of tokens."""

    name = "EmbedTokens"
    task = TokenEmbedding.name
    reply_type = pb.EmbedTokensReply
    inputs = "texts"
    returns_vectors = True

    def task_for(self, request: pb.EmbedTokensRequest, model: Model) -> TokenEmbedding:
        task: Any = model.task
        raise_violations(prompt_violations(request, task, exclusive=False))
        kind = next((kind for kind, value in FORMATS.items() if value == request.format), None)
        if kind is None:
            reason = f"unsupported: {request.format} (0 for float32, {pb.VECTOR_FORMAT_FLOAT16} for float16)"
            raise InvalidRequestError(violations=[Violation("format", reason)])
        return replace(  # type: ignore[no-any-return]
            task,
            is_query=request.input_type == pb.INPUT_TYPE_QUERY,
            prompt_name=prompt_name_of(request, task),
            with_offsets=request.return_offsets,
            dim=model.manifest.hidden_size,
            format=kind,
        )

    def reply_bytes(
        self, windows: Sequence[Sequence[Features]], request: pb.EmbedTokensRequest, task: TokenEmbedding
    ) -> int:
        check_num_vectors(sum(len(window) for items in windows for window in items))
        return 0

    def result(
        self, prediction: TokenVectors, example: Any, task: TokenEmbedding, request: pb.EmbedTokensRequest
    ) -> bytes:
        if task.format == "float16":
            check_float16(prediction.vectors)
        parts = {"vectors": to_bytes(prediction.vectors, task.format)}
        if prediction.offsets is not None:
            starts, ends = prediction.offsets.T.astype("<u4")
            parts |= {"starts": starts.tobytes(), "ends": ends.tobytes()}
        return b"".join(
            part for name, data in parts.items() for part in (header(_FIELDS[name].number, len(data)), data)
        )

    def start_reply(self, results: Sequence[bytes], task: TokenEmbedding) -> pb.EmbedTokensReply:
        return pb.EmbedTokensReply(dim=task.dim if results else 0, format=FORMATS[task.format])


def check_num_vectors(count: int) -> None:
    """Raise InvalidRequestError if a reply would hold more than `MAX_VECTORS`."""
    if count > MAX_VECTORS:
        reason = f"too many tokens: `{count}` (maximum `{MAX_VECTORS}`); send fewer texts"
        raise InvalidRequestError(reason, [Violation("texts", reason)])
