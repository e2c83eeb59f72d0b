"""OpenAI's routes: `POST /v1/embeddings`, `GET /v1/models` and `GET /v1/models/{model}`.

Source: OpenAI's API reference, "Embeddings" and "Models".
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

import numpy as np
import orjson

from bertline.v1 import encoder_pb2 as pb
from serving.core.calls import Call
from serving.core.models import Model
from serving.core.service import InferenceService
from serving.endpoints.embed import Embed
from serving.http_api.exchange import Exchange, HttpReply, Operation
from serving.http_api.fields import Dimensions, Fields, TextsOrTokenIds, model_reference, named_as, read_fields
from serving.http_api.status import openai_error
from serving.open_inference.endpoint import ModelInfer
from serving.open_inference.tensors import invalid_field
from serving.open_inference.v2 import service_pb2 as inference_pb
from tasks.embedding import Embedding

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

    def text_request(self) -> bytes:
        """Return the request for texts as a serialised EmbedRequest."""
        request = pb.EmbedRequest(model=model_reference(self.model), texts=cast(list[str], self.input))
        if self.dimensions is not None:
            request.dimensions = self.dimensions
        request.format = FORMATS[self.output_dtype]
        if self.output_dtype == "int8":  # of vectors of length 1 only
            request.normalize = True
        if self.prompt_name is not None:
            request.prompt_name = self.prompt_name
        if self.input_type is not None:
            request.input_type = pb.INPUT_TYPE_QUERY if "query" in self.input_type else pb.INPUT_TYPE_DOCUMENT
        return request.SerializeToString()

    def token_request(self, model: Model) -> bytes:
        """Return the request for token ids as a serialised ModelInferRequest."""
        if self.prompt_name or self.input_type:
            field = "prompt_name" if self.prompt_name else "input_type"
            raise invalid_field(field, "token ids get no prompt; send texts, or put its tokens before")
        if self.output_dtype != "float":
            raise invalid_field("output_dtype", "token ids give vectors of float only; send texts")
        lengths, longest = [len(row) for row in self.input], model.task.settings.max_seq_length
        for number, length in enumerate(lengths):
            if length > longest:
                raise invalid_field(f"input[{number}]", f"too long: `{length}` tokens (maximum `{longest}`)")
        ids = np.zeros((len(lengths), max(lengths)), "<i8")
        for number, row in enumerate(self.input):
            try:
                ids[number, : len(row)] = row
            except OverflowError:
                raise invalid_field(f"input[{number}]", "a token id is too large") from None
            _check_special_tokens(row, number, model)
        mask = (np.arange(ids.shape[1]) < np.array(lengths)[:, None]).astype("<i8")
        manifest = model.manifest
        request = inference_pb.ModelInferRequest(model_name=manifest.name, model_version=manifest.version)
        for name, array in (("input_ids", ids), ("attention_mask", mask)):
            request.inputs.add(name=name, datatype="INT64", shape=array.shape)
            request.raw_input_contents.append(array.tobytes())
        request.outputs.add(name="sentence_embedding")
        return request.SerializeToString()


def _check_special_tokens(row: Sequence[Any], number: int, model: Model) -> None:
    """Refuse token ids of another tokenizer, whose vectors would be wrong: some clients send OpenAI's by default.

    Ids that are right by chance are not noticed.
    """
    tokenizer = model.task.tokenizer
    first, last = (ids.tolist() for ids in (tokenizer.single.ids[0], tokenizer.single.ids[-1]))
    inside = row[len(first) : len(row) - len(last)]
    if list(row[: len(first)]) != first or list(row[len(row) - len(last) :]) != last:
        problem = f"they begin with `{row[0]}` and end with `{row[-1]}`, its own with `{first}` and `{last}`"
    elif not inside:
        raise invalid_field(f"input[{number}]", "the tokens of an empty text; send at least one of a text")
    elif strange := {tokenizer.pad_id, *first, *last}.intersection(inside):
        problem = f"special token `{min(strange)}` is inside"
    else:
        return
    raise invalid_field(
        f"input[{number}]",
        f"not token ids of this model: {problem} (POST /v1/tokenize gives them); send texts, in LangChain with "
        "check_embedding_ctx_length=False",
    )


def operations(service: InferenceService) -> Iterator[Operation]:
    """Yield OpenAI's routes."""
    embed, infer, pool = Embed(), ModelInfer(), service.codec_pool

    async def of_texts(fields: EmbeddingsRequest, call: Call) -> pb.EmbedReply:
        request = await pool.run(call, call.request_bytes, fields.text_request)
        return pb.EmbedReply.FromString((await service.infer(embed, request, call.deadline_s, call)).data)

    async def of_token_ids(fields: EmbeddingsRequest, call: Call) -> pb.EmbedReply:
        reference = model_reference(fields.model)
        model = service.models.find(reference.name, reference.version, Embed.task)
        service.limits.check_count(len(fields.input), field="input")
        task = _task(model, fields.dimensions)
        request = await pool.run(call, call.request_bytes, partial(fields.token_request, model))
        reply = (await service.infer(infer, request, call.deadline_s, call)).data
        return await pool.run(call, len(reply), partial(_vectors_of, reply, task, [len(row) for row in fields.input]))

    async def embeddings(data: bytes, call: Call, exchange: Exchange) -> HttpReply:
        fields = await pool.run(call, len(data), partial(read_fields, data, EmbeddingsRequest))
        with named_as({"texts": "input", "input_ids": "input", "format": "output_dtype"}):
            reply = await (of_texts if fields.has_texts else of_token_ids)(fields, call)
        size = len(reply.vectors)
        return HttpReply(await pool.run(call, size, partial(_embeddings, reply, fields)))

    async def models(data: bytes, call: Call, exchange: Exchange) -> HttpReply:
        found = {model.manifest.name: _model(model.manifest.name) for model in service.models}
        return HttpReply(orjson.dumps({"object": "list", "data": list(found.values())}))

    async def model(data: bytes, call: Call, exchange: Exchange) -> HttpReply:
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


def _task(model: Model, dimensions: int | None) -> Embedding:
    """Return the task of a model that cuts vectors to some dimensions."""
    if dimensions is not None and dimensions > model.manifest.hidden_size:
        raise invalid_field("dimensions", f"must be from 1 to {model.manifest.hidden_size}: `{dimensions}`")
    task: Any = model.task
    return replace(task, dimensions=dimensions or 0)


def _vectors_of(data: bytes, task: Embedding, lengths: list[int]) -> pb.EmbedReply:
    """Return the outputs of the graph for token ids as the reply for texts would hold them."""
    found = inference_pb.ModelInferResponse.FromString(data)
    rows = np.frombuffer(found.raw_output_contents[0], "<f4").reshape(len(lengths), -1)
    vectors = [task.decode("", (), [{"sentence_embedding": row}]) for row in rows]
    reply = pb.EmbedReply(dim=len(vectors[0]), num_tokens=lengths)
    reply.model.name = found.model_name
    reply.vectors = np.stack(vectors).astype("<f4").tobytes()
    return reply


def _embeddings(reply: pb.EmbedReply, fields: EmbeddingsRequest) -> bytes:
    numbers = np.frombuffer(reply.vectors, _DTYPES[fields.output_dtype])
    vectors = numbers.reshape(len(reply.num_tokens), -1)
    in_base64 = fields.encoding_format == "base64"
    rows = [base64.b64encode(row.tobytes()).decode() if in_base64 else row for row in vectors]
    num_tokens = sum(reply.num_tokens)
    return orjson.dumps(
        {
            "object": "list",
            "data": [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)],
            "model": reply.model.name,
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )
