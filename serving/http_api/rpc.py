"""RPCs of `bertline.v1` over HTTP: requests and replies in protobuf's JSON mapping, field names as in the proto."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from bertline.v1 import encoder_pb2 as pb
from serving.core.calls import Call
from serving.core.errors import InvalidRequestError, shorten
from serving.core.limits import MAX_WORDS
from serving.core.service import InferenceService
from serving.endpoints.answer_tag import Tag
from serving.endpoints.methods import encoder_methods
from serving.endpoints.rerank import Rerank
from serving.http_api.body import Body
from serving.http_api.exchange import Exchange, HttpReply, Operation
from serving.http_api.json_reply import join, message_parts
from serving.http_api.status import MAX_VIOLATIONS, own_error
from serving.http_api.wrong_fields import wrong_fields

_PREFIX = "Failed to parse "


JsonMethod = Callable[[bytes, Call], Awaitable[HttpReply]]
"""Function from a serialised request to the reply in JSON."""


def operations(service: InferenceService) -> Iterator[Operation]:
    """Yield a route for each RPC but Rerank: `POST /v1/embed` and so on, with dashes between words."""
    for rpc in pb.DESCRIPTOR.services_by_name["Encoder"].methods:
        if rpc.name != Rerank.name:  # its path has another route
            yield Operation(
                "POST",
                path_of(rpc.name),
                partial(_answer, GetMessageClass(rpc.input_type), json_method(service, rpc.name)),
                own_error,
                summary=f"RPC {rpc.name} of bertline.v1, in protobuf's JSON mapping.",
                requests=(GetMessageClass(rpc.input_type),),
                reply=GetMessageClass(rpc.output_type),
                max_words=MAX_WORDS if rpc.name == Tag.name else 0,
            )


def path_of(rpc: str) -> str:
    """Return the path of an RPC: `/v1/fill-mask` for FillMask."""
    return "/v1/" + "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in rpc).lstrip("-")


async def _answer(
    request_type: type[Message], method: JsonMethod, body: Body, call: Call, exchange: Exchange
) -> HttpReply:
    return await method(await body.read(partial(to_protobuf, request_type)), call)


def json_method(service: InferenceService, name: str) -> JsonMethod:
    """Return an RPC whose reply is JSON."""
    reply_type = GetMessageClass(pb.DESCRIPTOR.services_by_name["Encoder"].methods_by_name[name].output_type)
    method, pool = encoder_methods(service)[name], service.codec_pool

    async def answer(request: bytes, call: Call) -> HttpReply:
        reply = await method(request, call)
        return HttpReply(await pool.run(call, len(reply), lambda: join(message_parts(reply_type.FromString(reply)))))

    return answer


def to_protobuf(request_type: type[Message], values: dict[str, Any]) -> bytes:
    """Return the values of a JSON request as a serialised message.

    Raises:
        InvalidRequestError: when they do not fit the message: the error names the field.
    """
    try:
        return json_format.ParseDict(values, request_type()).SerializeToString()
    except (json_format.ParseError, ValueError, TypeError, OverflowError) as error:
        found = InvalidRequestError(violations=islice(wrong_fields(values, request_type), MAX_VIOLATIONS))
        raise (found if found.violations else InvalidRequestError(shorten(_reason(error)))) from None


def _reason(error: Exception) -> str:
    """Return protobuf's error as one sentence: `inputs: repeated field must be in [] which is "a" at ...`."""
    text = str(error).removeprefix(_PREFIX).replace(f"{_PREFIX}", "").rstrip(".")
    return " ".join(text.split())
