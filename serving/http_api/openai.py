"""OpenAI's routes: `POST /v1/embeddings`, `GET /v1/models` and `GET /v1/models/{model}`.

Source: OpenAI's API reference, "Embeddings" and "Models".
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, cast

import numpy as np
import orjson

from bertline.v1 import encoder_pb2 as pb
from serving.core.calls import Call
from serving.core.models import Model
from serving.core.service import InferenceService
from serving.endpoints.embed import Embed
from serving.http_api.body import Body
from serving.http_api.embed_token_ids import EmbedTokenIds
from serving.http_api.exchange import Exchange, HttpReply, Operation
from serving.http_api.fields import Dimensions, Fields, TextsOrTokenIds, model_reference, named_as, validated
from serving.http_api.json_reply import join, list_parts, object_parts
from serving.http_api.status import openai_error
from serving.open_inference.tensors import invalid_field

CREATED = 0
"""Time of creation of every model: manifests hold none."""
OWNER = "bertline"
FORMATS = {
    "float": pb.VECTOR_FORMAT_UNSPECIFIED,
    "float16": pb.VECTOR_FORMAT_FLOAT16,
    "int8": pb.VECTOR_FORMAT_INT8,
    "ubinary": pb.VECTOR_FORMAT_BINARY,
}
"""Values of `output_dtype`."""
_DTYPES = {"float": "<f4", "float16": "<f2", "int8": "i1", "ubinary": "u1"}


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

    @property
    def has_texts(self) -> bool:
        """True for texts, False for token ids."""
        return isinstance(self.input[0], str)

    def request(self) -> pb.EmbedRequest:
        """Return the request, without token ids.

        Raises:
            InvalidRequestError: when a field has no effect on token ids.
        """
        request = pb.EmbedRequest(model=model_reference(self.model), format=FORMATS[self.output_dtype])
        if self.has_texts:
            request.texts.extend(cast(list[str], self.input))
        elif field := next((name for name in ("prompt_name", "input_type") if getattr(self, name)), None):
            raise invalid_field(field, "token ids get no prompt; send texts, or put its tokens before")
        if self.dimensions is not None:
            request.dimensions = self.dimensions
        if self.output_dtype == "int8":  # of vectors of length 1 only
            request.normalize = True
        if self.prompt_name is not None:
            request.prompt_name = self.prompt_name
        if self.input_type is not None:
            request.input_type = pb.INPUT_TYPE_QUERY if "query" in self.input_type else pb.INPUT_TYPE_DOCUMENT
        return request


def operations(service: InferenceService) -> Iterator[Operation]:
    """Yield OpenAI's routes."""

    def read(values: dict[str, Any]) -> tuple[EmbeddingsRequest, Embed, bytes]:
        fields = validated(values, EmbeddingsRequest)
        service.limits.check_count(len(fields.input), field="input")
        request = fields.request()
        if fields.has_texts:
            return fields, Embed(), request.SerializeToString()
        return fields, EmbedTokenIds(request, cast(list[list[int]], fields.input)), b""

    async def embeddings(body: Body, call: Call, exchange: Exchange) -> HttpReply:
        fields, endpoint, request = await body.read(read)
        with named_as({"texts": "input", "inputs": "input", "format": "output_dtype"}):
            reply = await service.infer(endpoint, request or body.data, call.deadline_s, call)
        write = partial(_embeddings, reply.data, fields.output_dtype, fields.encoding_format)
        return HttpReply(await service.codec_pool.run(call, len(reply.data), write))

    async def models(body: Body, call: Call, exchange: Exchange) -> HttpReply:
        found = {model.manifest.name: _model(model.manifest.name) for model in service.models}
        return HttpReply(orjson.dumps({"object": "list", "data": list(found.values())}))

    async def model(body: Body, call: Call, exchange: Exchange) -> HttpReply:
        reference = model_reference(exchange.path_parameters["model"])
        found: Model = service.models.find(reference.name, reference.version)
        return HttpReply(orjson.dumps(_model(found.manifest.name)))

    yield Operation(
        "POST",
        "/v1/embeddings",
        embeddings,
        openai_error,
        summary="Vectors of texts or token ids, as OpenAI's.",
        requests=(EmbeddingsRequest,),
    )
    yield Operation("GET", "/v1/models", models, openai_error, summary="Loaded models, as OpenAI's.")
    yield Operation("GET", "/v1/models/{model:path}", model, openai_error, summary="One loaded model, as OpenAI's.")


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": CREATED, "owned_by": OWNER}


def _embeddings(data: bytes, dtype: str, encoding: str) -> bytes:
    """Return a serialised EmbedReply as OpenAI's JSON."""
    reply = pb.EmbedReply.FromString(data)
    vectors = np.frombuffer(reply.vectors, _DTYPES[dtype]).reshape(len(reply.num_tokens), -1)
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
