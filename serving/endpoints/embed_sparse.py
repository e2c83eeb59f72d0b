"""EmbedSparse: texts -> weights of tokens of the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bertline.v1 import encoder_pb2 as pb
from serving.core.errors import InvalidRequestError, Violation
from serving.core.models import Model
from serving.endpoints.base import MAX_SCORES, TextEndpoint, raise_violations
from serving.endpoints.embed import prompt_name_of, prompt_violations
from serving.endpoints.wire import header, serialize_elements
from tasks.features import Features
from tasks.sparse_embedding import SparseEmbedding, SparseVector

MAX_WEIGHTS = 2**23
"""Maximum number of weights in a reply without tokens: 64 MiB."""
INDICES, VALUES, TOKENS = (
    pb.SparseVector.DESCRIPTOR.fields_by_name[name].number for name in ("indices", "values", "tokens")
)


class EmbedSparse(TextEndpoint):
    """Texts -> sparse vectors."""

    name = "EmbedSparse"
    task = SparseEmbedding.name
    reply_type = pb.EmbedSparseReply
    inputs = "texts"

    def task_for(self, request: pb.EmbedSparseRequest, model: Model) -> SparseEmbedding:
        task: Any = model.task
        raise_violations(prompt_violations(request, task))
        return replace(task, top_k=request.top_k, prompt_name=prompt_name_of(request, task))  # type: ignore[no-any-return]

    def reply_bytes(
        self, windows: Sequence[Sequence[Features]], request: pb.EmbedSparseRequest, task: SparseEmbedding
    ) -> int:
        return weights_bytes(len(windows), task, MAX_SCORES if request.return_tokens else MAX_WEIGHTS)

    def result(
        self, prediction: SparseVector, example: Any, task: SparseEmbedding, request: pb.EmbedSparseRequest
    ) -> bytes:
        if not len(prediction.indices):
            return b""
        parts: list[bytes] = []
        for number, array in ((INDICES, prediction.indices.astype("<u4")), (VALUES, prediction.values.astype("<f4"))):
            parts += header(number, array.nbytes), array.tobytes()  # packed numbers of four bytes are arrays
        if request.return_tokens:
            names = (task.tokenizer.token(index).encode() for index in prediction.indices.tolist())
            parts += serialize_elements(TOKENS, names)
        return b"".join(parts)

    def start_reply(self, results: Sequence[bytes], task: SparseEmbedding) -> pb.EmbedSparseReply:
        return pb.EmbedSparseReply(dim=task.tokenizer.vocab_size)


def weights_bytes(num_texts: int, task: SparseEmbedding, limit: int = MAX_WEIGHTS) -> int:
    """Return the bytes of a reply, at most. Raise InvalidRequestError if it could hold more weights than `limit`."""
    count = num_texts * min(task.top_k or task.settings.top_k, task.tokenizer.vocab_size)
    if count > limit:
        reason = f"too many weights requested: `{count}` (maximum `{limit}`); send fewer texts or a smaller top_k"
        raise InvalidRequestError(reason, [Violation("top_k", reason)])
    return 8 * count
