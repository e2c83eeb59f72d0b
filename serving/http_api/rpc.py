"""RPCs of `bertline.v1` over HTTP: requests and replies in protobuf's JSON mapping, field names as in the proto."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import orjson
from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from bertline.v1 import encoder_pb2 as pb
from serving.core.calls import Call
from serving.core.errors import InvalidRequestError, shorten
from serving.core.service import InferenceService
from serving.endpoints.methods import Method, encoder_methods
from serving.endpoints.rerank import Rerank
from serving.http_api import rerank
from serving.http_api.exchange import Answer, Exchange, HttpReply, Operation
from serving.http_api.json_body import parse_object
from serving.http_api.status import own_error

_PREFIX = "Failed to parse "


def operations(service: InferenceService) -> Iterator[Operation]:
    """Yield a route for each RPC: `POST /v1/embed` and so on, with dashes between words."""
    methods = encoder_methods(service)
    for rpc in pb.DESCRIPTOR.services_by_name["Encoder"].methods:
        request_type, reply_type = (GetMessageClass(item) for item in (rpc.input_type, rpc.output_type))
        answer = _answer(service, methods[rpc.name], request_type, reply_type)
        if rpc.name == Rerank.name:
            yield from rerank.operations(service, answer)
        else:
            yield Operation(
                "POST",
                path_of(rpc.name),
                answer,
                own_error,
                summary=f"RPC {rpc.name} of bertline.v1, in protobuf's JSON mapping.",
                requests=(request_type,),
                reply=reply_type,
            )


def path_of(rpc: str) -> str:
    """Return the path of an RPC: `/v1/fill-mask` for FillMask."""
    return "/v1/" + "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in rpc).lstrip("-")


def _answer(
    service: InferenceService, method: Method, request_type: type[Message], reply_type: type[Message]
) -> Answer:
    async def answer(data: bytes, call: Call, exchange: Exchange) -> HttpReply:
        pool = service.codec_pool
        request = await pool.run(call, len(data), partial(_to_protobuf, data, request_type))
        reply = await method(request, call)
        return HttpReply(await pool.run(call, len(reply), partial(_to_json, reply, reply_type)))

    return answer


def _to_protobuf(data: bytes, request_type: type[Message]) -> bytes:
    """Return a JSON request as a serialised message.

    Raises:
        InvalidRequestError: when it is not JSON, or does not fit the message: the error names the field.
    """
    values = parse_object(data)
    try:
        return json_format.ParseDict(values, request_type()).SerializeToString()
    except (json_format.ParseError, ValueError, TypeError, OverflowError) as error:
        raise InvalidRequestError(shorten(_reason(error))) from None


def _reason(error: Exception) -> str:
    """Return protobuf's error as one sentence: `inputs: repeated field must be in [] which is "a" at ...`."""
    text = str(error).removeprefix(_PREFIX).replace(f"{_PREFIX}", "").rstrip(".")
    return " ".join(text.split())


def _to_json(data: bytes, reply_type: type[Message]) -> bytes:
    message = reply_type.FromString(data)
    values = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return orjson.dumps(values)
