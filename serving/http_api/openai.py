"""OpenAI's routes: `POST /v1/embeddings`, `GET /v1/models` and `GET /v1/models/{model}`.

Source: OpenAI's API reference, "Embeddings" and "Models".
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Literal, cast

import numpy as np
import orjson

from bertline.v1 import encoder_pb2 as pb
from serving.core.calls import Call
from serving.core.encoding import TextEncoder
from serving.core.errors import error_reason
from serving.core.limits import RequestLimits
from serving.core.models import Model
from serving.core.service import InferenceService
from serving.endpoints.base import TextInference
from serving.endpoints.embed import Embed
from serving.endpoints.wire import BuiltRequest
from serving.http_api.exchange import HttpReply, Operation, Request, message_of, violations_of
from serving.http_api.fields import Dimensions, Fields, TextsOrTokenIds, model_reference, named_as, validated
from serving.http_api.json_pieces import join, list_parts, object_parts, small_bytes
from serving.open_inference.tensors import invalid_field
from tasks.features import Features

ERROR_TYPES = {HTTPStatus.UNAUTHORIZED: "authentication_error", HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error"}
CREATED = 0
"""Time of creation of every model: manifests hold none."""
OWNER = "bertline"
FORMATS = {
    "float": (pb.VECTOR_FORMAT_UNSPECIFIED, "<f4"),
    "float16": (pb.VECTOR_FORMAT_FLOAT16, "<f2"),
    "int8": (pb.VECTOR_FORMAT_INT8, "i1"),
    "ubinary": (pb.VECTOR_FORMAT_BINARY, "u1"),
}
"""Values of `output_dtype`: format of the RPC, and numpy's type of the numbers."""


def openai_error(status: HTTPStatus, error: Exception) -> Mapping[str, Any]:
    """Return an error in OpenAI's shape."""
    violations = violations_of(error)
    return {
        "error": {
            "message": message_of(error),
            "type": ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error"),
            "param": violations[0]["field"] if violations else None,
            "code": error_reason(error).lower(),
        }
    }


class EmbeddingsRequest(Fields):
    """Request of `POST /v1/embeddings`."""

    input: TextsOrTokenIds
    """Token ids are those of the model's own tokenizer, special tokens included (`POST /v1/tokenize`)."""
    model: str = ""
    dimensions: Dimensions | None = None
    encoding_format: Literal["float", "base64"] = "float"
    output_dtype: Literal["float", "float16", "int8", "ubinary"] = "float"
    """Format of the vectors, under the names of Voyage's service, which has no float16; no field of OpenAI's."""
    prompt_name: str | None = None
    """Prompt of the model before each text; no field of OpenAI's, as `input_type`."""
    input_type: Literal["query", "document", "passage", "search_query", "search_document"] | None = None
    """`query` or `document`, also under the names that NVIDIA's and Cohere's services give them."""
    user: str | None = None
    """Ignored: the server keeps no record of end users."""

    def message(self, texts: Sequence[str]) -> pb.EmbedRequest:
        """Return the message of the request for texts; without any for token ids."""
        kind = None
        if self.input_type is not None:
            kind = pb.INPUT_TYPE_QUERY if "query" in self.input_type else pb.INPUT_TYPE_DOCUMENT
        return pb.EmbedRequest(
            model=model_reference(self.model),
            texts=texts,
            format=FORMATS[self.output_dtype][0],
            dimensions=self.dimensions,
            normalize=self.output_dtype == "int8" or None,  # of vectors of length 1 only
            prompt_name=self.prompt_name,
            input_type=kind,
        )


def operations(service: InferenceService) -> Iterator[Operation]:
    """Yield OpenAI's routes."""

    def read(data: bytes, values: dict[str, Any]) -> tuple[EmbeddingsRequest, Embed, BuiltRequest]:
        fields = validated(values, EmbeddingsRequest)
        service.limits.check_count(len(fields.input), field="input")
        if isinstance(fields.input[0], str):
            return fields, Embed(), BuiltRequest(fields.message(cast(list[str], fields.input)))
        if field := next((name for name in ("prompt_name", "input_type") if getattr(fields, name)), None):
            raise invalid_field(field, "token ids get no prompt; send texts, or put its tokens before")
        return fields, EmbedTokenIds(cast(list[list[int]], fields.input)), BuiltRequest(fields.message([]), data)

    async def embeddings(request: Request) -> HttpReply:
        fields, endpoint, built = await request.read(partial(read, request.data))
        with named_as({"texts": "input", "inputs": "input", "format": "output_dtype"}):
            reply = await service.infer(endpoint, built, request.call)
        write = partial(_embeddings, reply, fields.output_dtype, fields.encoding_format)
        small = small_bytes(request.call.num_inputs)
        return HttpReply(await request.pool.run(request.call, len(reply), write, small=small))

    async def models(request: Request) -> HttpReply:
        found = dict.fromkeys(model.manifest.name for model in service.models)
        return HttpReply(orjson.dumps({"object": "list", "data": list(map(_model, found))}))

    async def model(request: Request) -> HttpReply:
        reference = model_reference(request.path_parameters["model"])
        found: Model = service.models.find(reference.name, reference.version)
        return HttpReply(orjson.dumps(_model(found.manifest.name)))

    about = "Vectors of texts or token ids, as OpenAI's."
    requests = (EmbeddingsRequest,)
    yield Operation("POST", "/v1/embeddings", embeddings, openai_error, summary=about, requests=requests)
    yield Operation("GET", "/v1/models", models, openai_error, summary="Loaded models, as OpenAI's.")
    yield Operation("GET", "/v1/models/{model:path}", model, openai_error, summary="One loaded model, as OpenAI's.")


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": CREATED, "owned_by": OWNER}


def _embeddings(data: bytes, dtype: str, encoding: str) -> bytes:
    """Return a serialised EmbedReply as OpenAI's JSON."""
    reply = pb.EmbedReply.FromString(data)
    vectors = np.frombuffer(reply.vectors, FORMATS[dtype][1]).reshape(len(reply.num_tokens), -1)
    items = (
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(row.tobytes()).decode() if encoding == "base64" else row,
        }
        for index, row in enumerate(vectors)
    )
    num_tokens = sum(reply.num_tokens)
    values = {
        "object": "list",
        "model": reply.model.name,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }
    return join(object_parts(values, data=list_parts(items, 16)))


class EmbedTokenIds(Embed):
    """Token ids of texts, special tokens included -> vectors. An object serves one request."""

    inputs = "input"

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        """Set the token ids of each text."""
        self._rows = rows

    def num_inputs(self, request: pb.EmbedRequest) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def max_tokens(self, request: pb.EmbedRequest, model: Model) -> float:
        """Return the number of tokens."""
        return sum(map(len, self._rows))

    def prepare(self, request: pb.EmbedRequest, model: Model, limits: RequestLimits) -> TextInference:
        """Return the inference on the rows."""
        task, examples = self.task_for(request, model), [""] * len(self._rows)
        return _TokenIdInference(self, request, model, task, examples, rows=self._rows)


@dataclass(slots=True)
class _TokenIdInference(TextInference):
    rows: Sequence[Sequence[int]] = ()

    def encode(self, encoder: TextEncoder, call: Call, num_bytes: int) -> None:
        """Check the rows."""
        for number, row in enumerate(call.while_pending(self.rows)):
            _check_row(row, number, self.model)
        self.windows = [
            [Features(input_ids=np.array(row, np.int64), token_type_ids=np.zeros(len(row), np.int64))]
            for row in self.rows
        ]
        self.reply_bytes = 4 * self.model.num_outputs(self.lengths)


def _check_row(row: Sequence[int], number: int, model: Model) -> None:
    """Refuse a row that is too long, or of another tokenizer, whose vector would be wrong: some clients send OpenAI's.

    Ids that are right by chance are not noticed.
    """
    tokenizer, longest, field = model.task.tokenizer, model.task.settings.max_seq_length, f"input[{number}]"
    if len(row) > longest:
        raise invalid_field(field, f"too long: `{len(row)}` tokens (maximum `{longest}`)")
    stop = model.manifest.vocab_size
    if wrong := [place for place, item in enumerate(row) if not 0 <= item < stop]:
        raise invalid_field(f"{field}[{wrong[0]}]", f"must be from 0 to {stop - 1}: `{row[wrong[0]]}`")
    first, last = (ids.tolist() for ids in (tokenizer.single.ids[0], tokenizer.single.ids[-1]))
    inside = row[len(first) : len(row) - len(last)]
    if list(row[: len(first)]) != first or list(row[len(row) - len(last) :]) != last:
        problem = f"they begin with `{row[0]}` and end with `{row[-1]}`, its own with `{first}` and `{last}`"
    elif not inside:
        raise invalid_field(field, "the tokens of an empty text; send at least one of a text")
    elif strange := {tokenizer.pad_id, *first, *last}.intersection(inside):
        problem = f"special token `{min(strange)}` is inside"
    else:
        return
    raise invalid_field(
        field,
        f"not token ids of this model: {problem} (POST /v1/tokenize gives them); send texts, in LangChain with "
        "check_embedding_ctx_length=False",
    )
