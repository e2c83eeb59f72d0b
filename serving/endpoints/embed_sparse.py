"""EmbedSparse: texts -> weights of tokens of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from bertline.v1 import encoder_pb2 as pb
from serving.core.errors import InvalidRequestError, Violation
from serving.core.models import Model
from serving.endpoints.base import MAX_SCORES, TextEndpoint, raise_violations
from serving.endpoints.embed import prompt_name_of, prompt_violations
from serving.endpoints.wire import header, serialize_elements
from tasks.base import InvalidExample
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

    def examples(self, request: pb.EmbedSparseRequest, task: SparseEmbedding) -> list[str]:
        return list(request.texts)

    def reply_bytes(
        self, windows: Sequence[Sequence[Features]], request: pb.EmbedSparseRequest, task: SparseEmbedding
    ) -> int:
        return weights_bytes(len(windows), task, MAX_SCORES if request.return_tokens else MAX_WEIGHTS)

    def field_path(self, invalid: InvalidExample, request: pb.EmbedSparseRequest) -> str:
        return f"texts[{invalid.index}]"

    def result(
        self, prediction: SparseVector, example: Any, task: SparseEmbedding, request: pb.EmbedSparseRequest
    ) -> bytes:
        return b"".join(_serialized(prediction, task if request.return_tokens else None))

    def start_reply(self, results: Sequence[bytes], task: SparseEmbedding) -> pb.EmbedSparseReply:
        return pb.EmbedSparseReply(dim=task.tokenizer.vocab_size)


def weights_bytes(num_texts: int, task: SparseEmbedding, limit: int = MAX_WEIGHTS) -> int:
    """Return the bytes of a reply, at most. Raise InvalidRequestError if it could hold more weights than `limit`."""
    count = num_texts * min(task.top_k or task.settings.top_k, task.tokenizer.vocab_size)
    if count > limit:
        reason = f"too many weights requested: `{count}` (maximum `{limit}`); send fewer texts or a smaller top_k"
        raise InvalidRequestError(reason, [Violation("top_k", reason)])
    return 8 * count


def _serialized(vector: SparseVector, task: SparseEmbedding | None) -> Iterable[bytes]:
    """Yield a SparseVector in parts: packed numbers of four bytes are arrays.

    Args:
        task: adds the tokens; None for none.
    """
    if not len(vector.indices):
        return
    for number, array in ((INDICES, vector.indices.astype("<u4")), (VALUES, vector.values.astype("<f4"))):
        yield header(number, array.nbytes)
        yield array.tobytes()
    if task:
        names = (task.tokenizer.token(index).encode() for index in vector.indices.tolist())
        yield from serialize_elements(TOKENS, names)
