"""OpenAI's routes: `POST /v1/embeddings`, `GET /v1/models` and `GET /v1/models/{model}`.

Source: OpenAI's API reference, "Embeddings" and "Models"; for further fields, vLLM, Infinity and NVIDIA's NIM.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Literal, cast

import numpy as np
import orjson
from pydantic import Field

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
from serving.http_api.fields import (
    ANY_MODEL,
    Dimensions,
    Fields,
    ModelName,
    TextsOrTokenIds,
    model_reference,
    named_as,
    renaming,
    validated,
)
from serving.http_api.json_pieces import join, list_parts, object_parts, small_bytes
from serving.open_inference.tensors import invalid_field
from tasks.base import MIN_SEQ_LENGTH
from tasks.embedding import Embedding
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
_path = renaming({"texts": "input", "inputs": "input", "format": "output_dtype"})


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
    model: ModelName = ANY_MODEL
    dimensions: Dimensions | None = None
    encoding_format: Literal["float", "base64"] = "float"
    output_dtype: Literal["float", "float16", "int8", "ubinary"] = "float"
    """Format of the vectors, under the names of Voyage's service, which has no float16; no field of OpenAI's."""
    prompt_name: str | None = None
    """Prompt of the model before each text; no field of OpenAI's, as `input_type`."""
    input_type: Literal["query", "document", "passage", "search_query", "search_document"] | None = None
    """`query` or `document`, also under the names that NVIDIA's and Cohere's services give them."""
    truncate: Literal[True, False, "NONE", "END"] | None = None
    """True or `END` to cut texts that are too long; no field of OpenAI's. Absent: as the model was evaluated."""
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    """Tokens to cut texts to, special ones included; -1 for as many as the model reads. A field of vLLM's."""
    normalize: bool | None = None
    """Return vectors of length 1; a field of vLLM's. Absent: as the model does. False is refused if it always does."""
    add_special_tokens: Literal[True] = True
    """Accepted with the one value that this server has, as are the next fields."""
    embed_dtype: Literal["float32"] = "float32"
    endianness: Literal["native", "little"] = "little"
    modality: Literal["text"] = "text"
    user: str | None = None
    """Ignored, as `priority` and `request_id`: the vectors are the same."""
    priority: int | None = None
    request_id: str | None = None

    @property
    def max_tokens(self) -> int | None:
        """Number of tokens to cut texts to, if it is not that of the model."""
        return None if self.truncate_prompt_tokens == -1 else self.truncate_prompt_tokens

    @property
    def cuts(self) -> bool | None:
        """True to cut texts that are too long; None for the model's default."""
        if self.truncate_prompt_tokens is not None:
            return True
        return None if self.truncate is None else self.truncate in (True, "END")

    def message(self, texts: Sequence[str]) -> pb.EmbedRequest:
        """Return the message of the request for texts; without any for token ids.

        Raises:
            InvalidRequestError: when the request forbids to cut texts, and says where.
        """
        if self.truncate in (False, "NONE") and self.cuts:
            raise invalid_field("truncate_prompt_tokens", "set although `truncate` forbids it; leave one of them out")
        kind, normalize = None, self.normalize
        if self.output_dtype == "int8" and normalize is None:
            normalize = True  # its scales are those of vectors of length 1
        if self.input_type is not None:
            kind = pb.INPUT_TYPE_QUERY if "query" in self.input_type else pb.INPUT_TYPE_DOCUMENT
        return pb.EmbedRequest(
            model=self.model.reference,
            texts=texts,
            truncate=self.cuts,
            format=FORMATS[self.output_dtype][0],
            dimensions=self.dimensions,
            normalize=normalize,
            prompt_name=self.prompt_name,
            input_type=kind,
        )


def operations(service: InferenceService) -> Iterator[Operation]:
    """Yield OpenAI's routes."""

    def read(data: bytes, values: dict[str, Any]) -> tuple[EmbeddingsRequest, Embed, BuiltRequest]:
        fields = validated(values, EmbeddingsRequest)
        service.limits.check_count(len(fields.input), field="input")
        if isinstance(fields.input[0], str):
            message = fields.message(cast(list[str], fields.input))
            built = BuiltRequest(message) if fields.max_tokens is None else BuiltRequest(message, data)
            return fields, EmbedCut(fields.max_tokens), built
        if field := next((name for name in ("prompt_name", "input_type") if getattr(fields, name)), None):
            raise invalid_field(field, "token ids get no prompt; send texts, or put its tokens before")
        endpoint = EmbedTokenIds(cast(list[list[int]], fields.input), fields.max_tokens)
        return fields, endpoint, BuiltRequest(fields.message([]), data)

    async def embeddings(request: Request) -> HttpReply:
        fields, endpoint, built = await request.read(partial(read, request.data))
        with named_as(_path):
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
    if reply.model.space:  # OpenAI's chat has the field: what the numbers depend on
        values["system_fingerprint"] = reply.model.space
    return join(object_parts(values, data=list_parts(items, 16)))


class EmbedCut(Embed):
    """Texts, cut to a number of tokens -> vectors. An object serves one request."""

    def __init__(self, max_tokens: int | None) -> None:
        """Set the number of tokens; None for that of the model."""
        self._max_tokens = max_tokens

    def task_for(self, request: pb.EmbedRequest, model: Model) -> Embedding:
        """Return the model's task with the options of the request."""
        task = super().task_for(request, model)
        if self._max_tokens is None:
            return task
        prompt = task.settings.prompt(task.prompt_name)
        num_prompt = len(task.tokenizer.tokenize([prompt])[0]) if prompt else 0
        least = max(MIN_SEQ_LENGTH, task.tokenizer.single.num_special + num_prompt + 1)
        most = task.settings.max_seq_length
        if not least <= self._max_tokens <= most:
            reason = f"must be -1, or from {least} to the `{most}` tokens that {model} reads: `{self._max_tokens}`"
            raise invalid_field("truncate_prompt_tokens", reason)
        return task.with_settings(max_seq_length=self._max_tokens)


class EmbedTokenIds(EmbedCut):
    """Token ids of texts, special tokens included -> vectors. An object serves one request."""

    inputs = "input"

    def __init__(self, rows: Sequence[Sequence[int]], max_tokens: int | None) -> None:
        """Set the token ids of each text, and the number of tokens to cut them to; None for that of the model."""
        super().__init__(max_tokens)
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
        """Check the rows, and cut those that are too long, as their texts would have been."""
        longest, ending = self.task.settings.max_seq_length, len(self.model.task.tokenizer.single.ids[-1])
        cuts = self.request.truncate if self.request.HasField("truncate") else self.model.manifest.truncate
        self.windows = []
        for number, row in enumerate(call.while_pending(self.rows)):
            if len(row) > longest and not cuts:
                reason = f"too long: `{len(row)}` tokens (maximum `{longest}`); set `truncate`"
                raise invalid_field(f"input[{number}]", reason)
            _check_row(row, number, self.model)
            kept = [*row[: longest - ending], *row[len(row) - ending :]] if len(row) > longest else row
            types = np.zeros(len(kept), np.int64)
            ids, num_truncated = np.array(kept, np.int64), len(row) - len(kept)
            self.windows.append([Features(input_ids=ids, token_type_ids=types, num_truncated=num_truncated)])
        self.reply_bytes = 4 * self.model.num_outputs(self.lengths)


def _check_row(row: Sequence[int], number: int, model: Model) -> None:
    """Refuse a row of another tokenizer, whose vector would be wrong: some clients send OpenAI's.

    Ids that are right by chance are not noticed.
    """
    tokenizer, field = model.task.tokenizer, f"input[{number}]"
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
