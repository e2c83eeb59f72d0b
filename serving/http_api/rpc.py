"""RPCs of `bertline.v1` over HTTP: requests and replies in protobuf's JSON mapping, field names as in the proto."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import orjson
from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from bertline.v1 import encoder_pb2 as pb
from serving.core.calls import Call
from serving.core.errors import InvalidRequestError, shorten
from serving.core.service import InferenceService
from serving.endpoints.methods import encoder_methods
from serving.endpoints.rerank import Rerank
from serving.http_api.exchange import Answer, Exchange, HttpReply, Operation
from serving.http_api.json_body import parse_object
from serving.http_api.status import own_error
from serving.http_api.wrong_fields import wrong_fields

_PREFIX = "Failed to parse "


JsonMethod = Callable[[dict[str, Any], Call], Awaitable[HttpReply]]
"""Function from the values of a JSON request to the reply."""


def operations(service: InferenceService) -> Iterator[Operation]:
    """Yield a route for each RPC but Rerank: `POST /v1/embed` and so on, with dashes between words."""
    for rpc in pb.DESCRIPTOR.services_by_name["Encoder"].methods:
        if rpc.name != Rerank.name:  # its path has another route
            yield Operation(
                "POST",
                path_of(rpc.name),
                _answer(service, json_method(service, rpc.name)),
                own_error,
                summary=f"RPC {rpc.name} of bertline.v1, in protobuf's JSON mapping.",
                requests=(GetMessageClass(rpc.input_type),),
                reply=GetMessageClass(rpc.output_type),
            )


def path_of(rpc: str) -> str:
    """Return the path of an RPC: `/v1/fill-mask` for FillMask."""
    return "/v1/" + "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in rpc).lstrip("-")


def _answer(service: InferenceService, method: JsonMethod) -> Answer:
    async def answer(data: bytes, call: Call, exchange: Exchange) -> HttpReply:
        return await method(await service.codec_pool.run(call, len(data), partial(parse_object, data)), call)

    return answer


def json_method(service: InferenceService, name: str) -> JsonMethod:
    """Return an RPC as a function of JSON."""
    rpc, pool = pb.DESCRIPTOR.services_by_name["Encoder"].methods_by_name[name], service.codec_pool
    request_type, reply_type = (GetMessageClass(item) for item in (rpc.input_type, rpc.output_type))
    method = encoder_methods(service)[name]

    async def answer(values: dict[str, Any], call: Call) -> HttpReply:
        request = await pool.run(call, call.request_bytes, partial(_to_protobuf, values, request_type))
        values.clear()  # may be large
        reply = await method(request, call)
        return HttpReply(await pool.run(call, len(reply), partial(_to_json, reply, reply_type)))

    return answer


def _to_protobuf(values: dict[str, Any], request_type: type[Message]) -> bytes:
    """Return the values of a JSON request as a serialised message.

    Raises:
        InvalidRequestError: when they do not fit the message: the error names the field.
    """
    try:
        return json_format.ParseDict(values, request_type()).SerializeToString()
    except (json_format.ParseError, ValueError, TypeError, OverflowError) as error:
        found = InvalidRequestError(violations=wrong_fields(values, request_type))
        raise (found if found.violations else InvalidRequestError(shorten(_reason(error)))) from None


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
