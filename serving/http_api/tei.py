"""Routes of Text Embeddings Inference, so that its clients work with the address changed.

Source: OpenAPI description of huggingface/text-embeddings-inference 1.8. A server of TEI has one model and its routes
name none: here they take the default model of a task or that of a field `model`, and the same routes below
`/tei/{model}` take a named one. `/rerank` takes Cohere's requests, too, which other servers answer there.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from google.protobuf.message import Message
from pydantic import BeforeValidator, Field, PlainValidator

from bertline.v1 import encoder_pb2 as pb
from serving.core.codec_pool import SMALL_BYTES
from serving.core.errors import ErrorKind, InvalidRequestError, ServingError
from serving.core.models import Model
from serving.core.service import InferenceService
from serving.endpoints.base import TextEndpoint
from serving.endpoints.classify import Classify, Regress
from serving.endpoints.embed import Embed
from serving.endpoints.embed_sparse import EmbedSparse
from serving.endpoints.embed_tokens import EmbedTokens
from serving.endpoints.rerank import Rerank
from serving.endpoints.tokenize import MAX_TOKENS, answer_tokenize
from serving.endpoints.wire import BuiltRequest
from serving.http_api.exchange import HttpReply, Operation, Request, message_of
from serving.http_api.fields import (
    ANY_MODEL,
    Dimensions,
    Fields,
    ModelName,
    Rename,
    Texts,
    TokenIdRows,
    is_texts,
    model_reference,
    named_as,
    renaming,
    validated,
)
from serving.http_api.json_pieces import dumps, join, list_parts, nested_parts, small_bytes
from serving.http_api.rerank import NAMES as RERANK_NAMES
from serving.http_api.rerank import RerankFields as CohereFields
from serving.http_api.rerank import rerank_json as cohere_json
from serving.http_api.rerank import rerank_message, with_unscored
from serving.open_inference.tensors import invalid_field
from tasks.classification import Classification
from tasks.regression import Regression

PREFIX = "/tei/{model}"
_ERROR_TYPES = {
    ErrorKind.INVALID_REQUEST: "Validation",
    ErrorKind.EXHAUSTED: "Overloaded",
    ErrorKind.UNAVAILABLE: "Unhealthy",
}
_text_path = renaming({"texts": "inputs", "top_k": "inputs"})
_rerank_path = renaming({name: new.replace("documents", "texts") for name, new in RERANK_NAMES.items()})
_PAIR_FIELD = re.compile(r"inputs\[(\d+)\](?:\.(text|text_pair))?")

JSON_FACTOR = 5
"""Bytes of a token in TEI's JSON per byte in a serialised TokenizeReply, at most."""
BLOCK_TOKENS = 1024
"""Number of tokens of `/tokenize` that are written in one step, which holds the interpreter lock."""

Answer = Callable[[Request, str], Awaitable[bytes]]
"""Function from a request and the name of a model to the JSON of the reply."""
Reader = Callable[[dict[str, Any], str, str], "Inference"]
"""Function from the values of a request, the name of a model in its path, and the id of the request."""


def tei_error(status: HTTPStatus, error: Exception) -> Mapping[str, Any]:
    """Return an error in TEI's shape."""
    kind = error.kind if isinstance(error, ServingError) else ErrorKind.INTERNAL
    return {"error": message_of(error), "error_type": _ERROR_TYPES.get(kind, "Backend")}


def _texts_or_pairs(value: Any) -> tuple[bool, list[list[str]]]:
    """Return whether there are several inputs, and each as one text or two."""
    if isinstance(value, str):
        return False, [[value]]
    if is_texts(value) and len(value) in (1, 2):
        return False, [value]
    if isinstance(value, list) and all(is_texts(item) and len(item) in (1, 2) for item in value):
        return True, value
    raise ValueError("must be a text, a pair of texts, or a list of lists with one text or two")


def _without_values(value: Any) -> Any:
    """Return an object without the fields that are null."""
    if not isinstance(value, dict):
        return value
    if name := next((name for name, item in value.items() if item is not None), None):
        raise ValueError(f"`{name[:80]}` is not supported here; leave it out")
    return None


TextsOrPairs = Annotated[
    tuple[bool, list[list[str]]],
    PlainValidator(
        _texts_or_pairs,
        str
        | Annotated[list[str], Field(min_length=1, max_length=2)]
        | list[Annotated[list[str], Field(min_length=1, max_length=2)]],
    ),
]


class TeiFields(Fields):
    """Fields of every request."""

    model: ModelName = ANY_MODEL
    """Model, where the path names none; no field of TEI's."""

    def reference(self, name: str) -> pb.ModelRef:
        """Return the model of a request.

        Args:
            name: name in the path; empty if it has none.

        Raises:
            InvalidRequestError: when the body names another model than the path.
        """
        wanted = model_reference(name)
        if name and self.model.reference not in (pb.ModelRef(), wanted):
            raise invalid_field("model", f"the path names `{name[:80]}`; leave it out")
        return wanted if name else self.model.reference


class CutFields(TeiFields):
    """Fields of the requests whose texts can be too long."""

    truncate: bool = False
    truncation_direction: Literal["Right", "right"] = "Right"


class TextFields(CutFields):
    """Request of `POST /embed_sparse` and `/embed_all`."""

    inputs: Texts
    prompt_name: str | None = None


class EmbedFields(TextFields):
    """Request of `POST /embed`."""

    normalize: bool = True
    """False is refused for a model that always normalises its vectors."""
    dimensions: Dimensions | None = None


class PredictFields(CutFields):
    """Request of `POST /predict`."""

    inputs: TextsOrPairs
    raw_scores: Literal[False] = False
    parameters: Annotated[dict[str, None] | None, BeforeValidator(_without_values)] = None
    """Must be empty. The client of the Hugging Face hub sends it, with options that TEI does not have."""


class RerankFields(CutFields):
    """Request of `POST /rerank`. `truncate` cuts the query only: documents are read whole."""

    query: str
    texts: Texts
    raw_scores: bool = False
    """False for scores after the model's own activation function, which need not be from 0 to 1 as TEI's are."""
    return_text: bool = False
    label: str = ""
    """Label of a classification model that means that a text fits; no field of TEI's."""
    best_effort: bool = False
    """True to score what can be scored before the deadline; the others follow with `"scored": false`. No field of
    TEI's."""


class TokenizeFields(TeiFields):
    """Request of `POST /tokenize`."""

    inputs: Texts
    add_special_tokens: bool = True
    prompt_name: None = None


class DecodeFields(TeiFields):
    """Request of `POST /decode`."""

    ids: TokenIdRows
    skip_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class Inference:
    """Call of the inference service that a request makes."""

    endpoint: TextEndpoint
    message: Message
    write: Callable[[bytes], bytes]
    """Returns TEI's JSON of the serialised reply."""
    rename: Rename = _text_path
    """Returns the fields of errors under the names of the route."""
    repeats_texts: bool = False
    """True if the reply holds texts of the request."""


def _embed(fields: EmbedFields, model: pb.ModelRef) -> Inference:
    message = pb.EmbedRequest(**_text_options(fields, model), normalize=fields.normalize, dimensions=fields.dimensions)
    return Inference(Embed(), message, embed_json)


def _embed_sparse(fields: TextFields, model: pb.ModelRef) -> Inference:
    return Inference(EmbedSparse(), pb.EmbedSparseRequest(**_text_options(fields, model)), sparse_json)


def _embed_all(fields: TextFields, model: pb.ModelRef) -> Inference:
    return Inference(EmbedTokens(), pb.EmbedTokensRequest(**_text_options(fields, model)), token_vectors_json)


def _text_options(fields: TextFields, model: pb.ModelRef) -> dict[str, Any]:
    names = {"truncate": fields.truncate, "prompt_name": fields.prompt_name}
    return {"model": model, "texts": fields.inputs, **names}


def _classify(fields: PredictFields, model: pb.ModelRef) -> Inference:
    message = pb.ClassifyRequest(**_pair_options(fields, model))
    several = fields.inputs[0]
    return Inference(Classify(), message, partial(classify_json, several), partial(_pair_path, several))


def _regress(fields: PredictFields, model: pb.ModelRef) -> Inference:
    message = pb.RegressRequest(**_pair_options(fields, model))
    several = fields.inputs[0]
    return Inference(Regress(), message, partial(regress_json, several), partial(_pair_path, several))


def _pair_options(fields: PredictFields, model: pb.ModelRef) -> dict[str, Any]:
    inputs = [pb.TextInput(text=item[0], text_pair=item[1] if len(item) > 1 else None) for item in fields.inputs[1]]
    return {"model": model, "inputs": inputs, "truncate": fields.truncate}


def _pair_path(several: bool, path: str) -> str:
    """Return the path of a text of `/predict`: `inputs[3][1]` for the second one of a pair."""
    if not (found := _PAIR_FIELD.fullmatch(path)):
        return path
    text = {"text": "[0]", "text_pair": "[1]"}.get(found[2], "")
    return f"inputs[{found[1]}]{text}" if several else f"inputs{text}"


def _rerank(fields: RerankFields, model: pb.ModelRef) -> Inference:
    options = {name: getattr(fields, name) for name in ("truncate", "raw_scores", "label", "best_effort")}
    message = rerank_message(model, fields.query, fields.texts, **options)
    write = partial(rerank_json, fields.texts if fields.return_text else None, fields.best_effort)
    return Inference(Rerank(), message, write, _rerank_path, fields.return_text)


def _reader(kind: type[Any], prepare: Callable[[Any, pb.ModelRef], Inference]) -> Reader:
    """Return a reader of requests.

    Args:
        kind: fields of the request.
        prepare: returns what they ask of a model.
    """

    def read(values: dict[str, Any], name: str, request_id: str) -> Inference:
        fields = validated(values, kind)
        return prepare(fields, fields.reference(name))

    return read


_read_embed, _read_tei_rerank = _reader(EmbedFields, _embed), _reader(RerankFields, _rerank)


def _read_rerank(values: dict[str, Any], name: str, request_id: str) -> Inference:
    """Return what a request of TEI's asks, or one of Cohere's, which has `documents` in place of `texts`."""
    if values.get("documents") is None or values.get("texts") is not None:
        return _read_tei_rerank(values, name, request_id)
    fields = validated(values, CohereFields)
    message = fields.request(TeiFields(model=fields.model).reference(name))
    write = partial(cohere_json, fields, "1", request_id)
    return Inference(Rerank(), message, write, renaming(RERANK_NAMES), fields.return_documents)


class TeiRoutes:
    """Answers TEI's routes with the models of the inference service."""

    def __init__(self, service: InferenceService, max_request_bytes: int) -> None:
        """Set up the routes.

        Args:
            service: holds the models, and answers.
            max_request_bytes: maximum size of a request, for `/info`.
        """
        self._service, self._max_request_bytes = service, max_request_bytes
        self._read_predict = _reader(PredictFields, self._predict)

    def operations(self) -> Iterator[Operation]:
        """Yield the routes, each for the only model and for a named one."""
        any_fields, texts = (EmbedFields, PredictFields, RerankFields), (TextFields,)
        read_sparse, read_all = _reader(TextFields, _embed_sparse), _reader(TextFields, _embed_all)
        routes: list[tuple[str, Answer, tuple[type, ...], str]] = [
            ("/embed", partial(self._infer, _read_embed), (EmbedFields,), "Vectors of texts"),
            ("/embed_sparse", partial(self._infer, read_sparse), texts, "Sparse vectors of texts"),
            ("/embed_all", partial(self._infer, read_all), texts, "Vectors of the tokens of texts"),
            ("/predict", partial(self._infer, self._read_predict), (PredictFields,), "Labels or numbers of texts"),
            (
                "/rerank",
                partial(self._infer, _read_rerank),
                (RerankFields, CohereFields),
                "Texts in the order in which they fit a query",
            ),
            ("/tokenize", self._tokenize, (TokenizeFields,), "Tokens of texts"),
            ("/decode", self._decode, (DecodeFields,), "Texts of token ids"),
            ("", partial(self._infer, self._read_any), any_fields, "Vectors, labels or a ranking"),
        ]
        for path, answer, requests, summary in routes:
            for place, of_what in ((path or "/", ""), (PREFIX + path, " of a named model")):
                about = f"{summary}{of_what}, as Text Embeddings Inference."
                yield Operation("POST", place, _route(answer), tei_error, summary=about, requests=requests)
        for place in ("/info", f"{PREFIX}/info"):
            about = "A model, as Text Embeddings Inference describes it."
            yield Operation("GET", place, _route(self._info), tei_error, summary=about)

    async def _infer(self, reader: Reader, request: Request, name: str) -> bytes:
        """Return the reply of an endpoint as TEI's JSON.

        Args:
            reader: reads the request.
            request: request.
            name: name of the model; empty for the default one of a task.
        """
        call = request.call

        def read(values: dict[str, Any]) -> tuple[Inference, BuiltRequest]:
            wanted = reader(values, name, call.request_id)
            return wanted, BuiltRequest(wanted.message)

        wanted, built = await request.read(read)
        if wanted.repeats_texts:
            call.reserve_memory(call.request_bytes)
        with named_as(wanted.rename):
            reply = await self._service.infer(wanted.endpoint, built, call)
        size = max(len(reply), call.request_bytes)
        small = small_bytes(call.num_inputs) if wanted.endpoint.returns_vectors else SMALL_BYTES
        return await request.pool.run(call, size, partial(wanted.write, reply), small=small)

    def _read_any(self, values: dict[str, Any], name: str, request_id: str) -> Inference:
        """Return what a request of `POST /` asks, by the task of the model; without one, vectors."""
        readers = {Embed.task: _read_embed, Classify.task: self._read_predict, Regress.task: self._read_predict}
        wanted = validated({"model": values.get("model")}, TeiFields).reference(name)
        if not (model := self._chosen(wanted, lambda model: True)):
            return _read_embed(values, name, request_id)
        task = model.task.name
        if task == Regress.task and values.get("query") is not None:
            return _read_rerank(values, name, request_id)
        if task not in readers:
            raise InvalidRequestError(
                f"`{model.manifest.name}` is a model for `{task}`; TEI knows {', '.join(readers)}"
            )
        return readers[task](values, name, request_id)

    def _predict(self, fields: PredictFields, model: pb.ModelRef) -> Inference:
        """Return the request for labels; for numbers if the model gives them, or only such a model is there."""
        kinds = (Classification.name, Regression.name)
        chosen = self._chosen(model, lambda model: model.task.name in kinds)
        return (_regress if chosen and chosen.task.name == Regression.name else _classify)(fields, model)

    def _chosen(self, wanted: pb.ModelRef, fits: Callable[[Model], bool]) -> Model | None:
        """Return the model of a name; without one, the default of those that fit, or None if there is none."""
        models = self._service.models
        try:
            name = wanted.name or models.default_name(None, fits)
        except InvalidRequestError:
            return None
        return models.find(name, wanted.version)

    async def _tokenize(self, request: Request, name: str) -> bytes:
        call = request.call

        def read(values: dict[str, Any]) -> tuple[bool, BuiltRequest]:
            fields = validated(values, TokenizeFields)
            inputs = [pb.TextInput(text=text) for text in fields.inputs]
            manifest = self._model(fields.reference(name)).manifest
            model = pb.ModelRef(name=manifest.name, version=manifest.version)
            return fields.add_special_tokens, BuiltRequest(pb.TokenizeRequest(model=model, inputs=inputs))

        with_special, built = await request.read(read)
        with named_as(lambda path: path.removesuffix(".text")):
            reply = await answer_tokenize(self._service, built, call)
        call.reserve_memory(JSON_FACTOR * len(reply))
        return await request.pool.run(call, len(reply), partial(tokenize_json, with_special, reply))

    async def _decode(self, request: Request, name: str) -> bytes:
        fields = await request.read(lambda values: validated(values, DecodeFields))
        self._service.limits.check_count(len(fields.ids), field="ids")
        decode = partial(_decoded_json, self._model(fields.reference(name)), fields.ids, fields.skip_special_tokens)
        return await request.pool.run(request.call, len(request.data), decode)

    async def _info(self, request: Request, name: str) -> bytes:
        model = self._model(model_reference(name))
        manifest, settings = model.manifest, model.task.settings
        values = {
            "model_id": manifest.name,
            "model_sha": manifest.version,
            "model_dtype": manifest.precision,
            "model_type": model.task.tei_type(),
            "max_input_length": settings.max_seq_length,
            "max_batch_tokens": model.max_batch_tokens,
            "max_client_batch_size": self._service.limits.max_texts,
            "payload_limit": self._max_request_bytes,
            "auto_truncate": False,
            "version": version("bertline"),
        }
        return orjson.dumps(values)

    def _model(self, wanted: pb.ModelRef) -> Model:
        """Return the model of a name; without one, the default of the models for vectors."""
        return self._service.models.find(wanted.name, wanted.version, None if wanted.name else Embed.task)


def _route(answer: Answer) -> Callable[[Request], Awaitable[HttpReply]]:
    async def route(request: Request) -> HttpReply:
        return HttpReply(await answer(request, request.path_parameters.get("model", "")))

    return route


def _decoded_json(model: Model, rows: list[list[int]], skip_special: bool) -> bytes:
    """Return the texts of token ids."""
    if (num_ids := sum(map(len, rows))) > MAX_TOKENS:
        raise invalid_field("ids", f"too many: `{num_ids}` (maximum `{MAX_TOKENS}`); send several requests")
    for number, row in enumerate(rows):
        if wrong := [item for item in row if not 0 <= item < model.manifest.vocab_size]:
            raise invalid_field(f"ids[{number}]", f"`{wrong[0]}` is no token id of {model}")
    decode = model.task.tokenizer.backend.decode_batch  # unlike `decode`, it releases the interpreter lock
    return join(list_parts(decode([row], skip_special_tokens=skip_special)[0] for row in rows))


def embed_json(data: bytes) -> bytes:
    """Return the vectors of a serialised EmbedReply."""
    reply = pb.EmbedReply.FromString(data)
    return join(list_parts(np.frombuffer(reply.vectors, "<f4").reshape(-1, reply.dim or 1), 16))


def sparse_json(data: bytes) -> bytes:
    """Return the weights of a serialised EmbedSparseReply in the order of their ids."""
    return join(
        list_parts(
            [
                {"index": index, "value": value}
                for index, value in sorted(zip(result.indices, result.values, strict=True))
            ]
            for result in pb.EmbedSparseReply.FromString(data).results
        )
    )


def token_vectors_json(data: bytes) -> bytes:
    """Return the vectors of a serialised EmbedTokensReply."""
    reply = pb.EmbedTokensReply.FromString(data)
    return join(list_parts(np.frombuffer(item.vectors, "<f4").reshape(-1, reply.dim) for item in reply.results))


def classify_json(several: bool, data: bytes) -> bytes:
    """Return the labels of a serialised ClassifyReply; those of the only input without a list around them."""
    found = (
        [{"score": item.score, "label": item.label} for item in result.labels]
        for result in pb.ClassifyReply.FromString(data).results
    )
    return join(list_parts(found, 16)) if several else dumps(next(found))


def regress_json(several: bool, data: bytes) -> bytes:
    """Return the numbers of a serialised RegressReply as scores of one label, as `classify_json`."""
    found = [[{"score": value, "label": "LABEL_0"}] for value in pb.RegressReply.FromString(data).values]
    return dumps(found if several else found[0])


def rerank_json(texts: Sequence[str] | None, best_effort: bool, data: bytes) -> bytes:
    """Return the ranking of a serialised RerankReply for one query, with the texts if they are given."""
    found = (
        {
            "index": item.document,
            "score": item.score,
            **({} if texts is None else {"text": texts[item.document]}),
            **more,
        }
        for item, more in with_unscored(pb.RerankReply.FromString(data).results[0], best_effort=best_effort)
    )
    return join(list_parts(found, 16))


def tokenize_json(with_special: bool, data: bytes) -> bytes:
    """Return the tokens of a serialised TokenizeReply."""
    results = pb.TokenizeReply.FromString(data).results
    return join(nested_parts(list_parts(_tokens(item, with_special), BLOCK_TOKENS) for item in results))


def _tokens(item: pb.TokenizedInput, with_special: bool) -> Iterator[dict[str, Any]]:
    rows = zip(item.ids, item.tokens, item.special, item.starts, item.ends, strict=True)
    return (
        {
            "id": token_id,
            "text": token,
            "special": special,
            "start": None if special else start,
            "stop": None if special else end,
        }
        for token_id, token, special, start, end in rows
        if with_special or not special
    )
