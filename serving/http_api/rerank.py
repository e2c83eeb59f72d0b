"""Routes of rerankers: `POST /v1/rerank` as those of Cohere and Jina, and `POST /v2/rerank` as Cohere's.

Source: API references of Cohere ("Rerank", v1 and v2) and Jina ("Reranker"), and the requests of vLLM and Infinity. The
RPC Rerank has the path `/v1/rerank`, too: its requests are recognised by their field `inputs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from itertools import starmap
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, FailFast, Field, PlainValidator

from bertline.v1 import encoder_pb2 as pb
from serving.core.service import InferenceService
from serving.endpoints.rerank import Rerank
from serving.endpoints.wire import BuiltRequest
from serving.http_api.exchange import HttpReply, Operation, Request, message_of, own_error
from serving.http_api.fields import ANY_MODEL, Fields, ModelName, named_as, renaming, validated
from serving.http_api.json_pieces import join, list_parts, object_parts
from serving.http_api.rpc import json_method, rpc_request

NAMES = {
    "inputs[0].query": "query",
    "inputs[0].documents": "documents",
    "inputs[0]": "documents",
    "inputs": "documents",
}
"""Fields of the RPC -> those of the routes for one query."""
TopN = Annotated[int, Field(ge=1, le=2**32 - 1)]
"""Type of a field with the number of documents to return."""


def rerank_error(status: HTTPStatus, error: Exception) -> Mapping[str, Any]:
    """Return an error in Cohere's shape, with the fields of Bertline's own."""
    return {"message": message_of(error), **own_error(status, error)}


def _documents(value: Any) -> list[str | dict[str, Any]]:
    """Return documents, each a text or an object with the field `text`; one text is a list of it."""
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of documents, and not empty")
    for number, item in enumerate(value):
        if not isinstance(item.get("text") if isinstance(item, dict) else item, str):
            raise ValueError(f"document {number} is neither a text nor an object with the field `text`")
        if isinstance(item, dict) and len(item) > 1:
            try:
                orjson.dumps(item)  # it may have to be returned
            except TypeError:
                raise ValueError(f"document {number} holds an integer beyond 64 bits") from None
    return value


class DocumentFields(BaseModel, extra="allow"):
    """Document of a request; other fields are not read, only returned."""

    text: str


class RerankFields(Fields):
    """Request of `POST /v1/rerank` and `/v2/rerank`."""

    query: str
    documents: Annotated[
        list[str | dict[str, Any]],
        PlainValidator(_documents, str | Annotated[list[str | DocumentFields], Field(min_length=1)]),
    ]
    model: ModelName = ANY_MODEL
    top_n: TopN | None = None
    return_documents: bool = False
    truncate: bool | None = None
    """True to cut a query that is too long; no field of Cohere's."""
    label: str = ""
    """Label of a classification model that means that a document fits; no field of Cohere's or Jina's."""
    raw_scores: bool = False
    """True for scores before the model's own activation function; a field of Infinity's."""
    best_effort: bool = False
    """True to score what can be scored before the deadline; the others follow with `"scored": false`."""
    max_tokens_per_doc: None = None
    """Other values are refused: documents are read whole."""
    max_chunks_per_doc: None = None
    rank_fields: Annotated[list[Literal["text"]], FailFast()] = Field(default_factory=list, min_length=1)
    """Only `text` of a document is read."""
    user: str | None = None
    """Ignored, as `priority` and `request_id`: the scores are the same."""
    priority: int | None = None
    request_id: str | None = None

    def request(self, model: pb.ModelRef | None = None) -> pb.RerankRequest:
        """Return the request of the RPC.

        Args:
            model: model of a path, which counts instead of that of the body.
        """
        texts = [item if isinstance(item, str) else item["text"] for item in self.documents]
        options = {name: getattr(self, name) for name in ("top_n", "label", "truncate", "raw_scores", "best_effort")}
        return rerank_message(model or self.model.reference, self.query, texts, **options)


def rerank_message(model: pb.ModelRef, query: str, texts: Sequence[str], **options: Any) -> pb.RerankRequest:
    """Return the RPC's request for one query, with other fields of the message."""
    return pb.RerankRequest(model=model, inputs=[pb.RerankInput(query=query, documents=texts)], **options)


def operations(service: InferenceService) -> Iterator[Operation]:
    """Yield the routes."""
    endpoint, answer_rpc = Rerank(), json_method(service, Rerank.name)

    def read(values: dict[str, Any]) -> tuple[RerankFields, BuiltRequest]:
        fields = validated(values, RerankFields)
        service.limits.check_count(len(fields.documents), "documents", field="documents")
        return fields, BuiltRequest(fields.request())

    def read_either(values: dict[str, Any]) -> tuple[RerankFields | None, BuiltRequest]:
        return (None, rpc_request(pb.RerankRequest, values)) if values.get("inputs") is not None else read(values)

    async def rank(request: Request, fields: RerankFields, built: BuiltRequest, version: str) -> HttpReply:
        call = request.call
        if fields.return_documents:
            call.reserve_memory(call.request_bytes)
        with named_as(renaming(NAMES)):
            data = await service.infer(endpoint, built, call)
        size = call.request_bytes if fields.return_documents else len(data)
        write = partial(rerank_json, fields, version, call.request_id, data)
        return HttpReply(await request.pool.run(call, size, write))

    async def rerank_or_rpc(request: Request) -> HttpReply:
        fields, built = await request.read(read_either)
        return await (rank(request, fields, built, "1") if fields else answer_rpc(request, built))

    async def rerank(request: Request) -> HttpReply:
        return await rank(request, *await request.read(read), "2")

    yield Operation(
        "POST",
        "/v1/rerank",
        rerank_or_rpc,
        rerank_error,
        summary="Documents in the order in which they fit a query, as Cohere's and Jina's; with `inputs` the RPC.",
        requests=(RerankFields, pb.RerankRequest),
    )
    yield Operation(
        "POST",
        "/v2/rerank",
        rerank,
        rerank_error,
        summary="Documents in the order in which they fit a query, as Cohere's.",
        requests=(RerankFields,),
    )


def rerank_json(fields: RerankFields, version: str, request_id: str, data: bytes) -> bytes:
    """Return the ranking of a serialised RerankReply for one query.

    Args:
        fields: request.
        version: version of Cohere's API.
        request_id: id of the request.
        data: reply.
    """
    reply = pb.RerankReply.FromString(data)
    num_tokens = sum(reply.num_tokens)
    values = {
        "id": request_id,
        "object": "list",
        "model": reply.model.name,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        "meta": {"api_version": {"version": version}, "tokens": {"input_tokens": num_tokens}},
    }

    def result(item: pb.RankedDocument, unscored: Mapping[str, bool]) -> dict[str, Any]:
        found: dict[str, Any] = {"index": item.document, "relevance_score": item.score, **unscored}
        if fields.return_documents:
            document = fields.documents[item.document]
            found["document"] = {"text": document} if isinstance(document, str) else document
        return found

    results = starmap(result, with_unscored(reply.results[0], best_effort=fields.best_effort))
    return join(object_parts(values, results=list_parts(results, 16)))


def with_unscored(
    result: pb.RerankResult, *, best_effort: bool
) -> Iterator[tuple[pb.RankedDocument, Mapping[str, bool]]]:
    """Yield the documents of a ranking, each with a field for JSON that says if it was not scored."""
    num_scored = result.num_scored if best_effort else len(result.documents)
    for place, item in enumerate(result.documents):
        yield item, {} if place < num_scored else {"scored": False}
