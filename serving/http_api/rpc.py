"""RPCs of `bertline.v1` over HTTP: requests and replies in protobuf's JSON mapping, field names as in the proto.

A request may be shorter than in that mapping: the name of a model, one item in place of a list, the text of an input.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from bertline.v1 import encoder_pb2 as pb
from serving.core.codec_pool import SMALL_BYTES
from serving.core.errors import InvalidRequestError, Violation, shorten
from serving.core.limits import MAX_WORDS
from serving.core.service import InferenceService
from serving.endpoints.answer_tag import Tag
from serving.endpoints.embed import Embed
from serving.endpoints.methods import ENCODER, encoder_methods
from serving.endpoints.rerank import Rerank
from serving.endpoints.wire import BuiltRequest
from serving.http_api.exchange import MAX_VIOLATIONS, HttpReply, Operation, Request, own_error
from serving.http_api.fields import name_and_version
from serving.http_api.json_pieces import join, message_parts, path_of, small_bytes

JsonMethod = Callable[[Request, BuiltRequest], Awaitable[HttpReply]]
"""Function from a request, and its message, to the reply in JSON."""
Path = tuple[str | int, ...]
_PREFIX = "Failed to parse "
_WANTED = {
    FieldDescriptor.CPPTYPE_STRING: "a string",
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_UINT32: f"an integer from 0 to {2**32 - 1}",
}


def operations(service: InferenceService) -> Iterator[Operation]:
    """Yield a route for each RPC but Rerank: `POST /v1/embed` and so on, with dashes between words."""
    for rpc in ENCODER.methods:
        if rpc.name != Rerank.name:  # its path has another route
            yield Operation(
                "POST",
                rpc_path(rpc.name),
                partial(_answer, GetMessageClass(rpc.input_type), json_method(service, rpc.name)),
                own_error,
                summary=f"RPC {rpc.name} of bertline.v1, in protobuf's JSON mapping.",
                requests=(GetMessageClass(rpc.input_type),),
                reply=GetMessageClass(rpc.output_type),
                max_words=MAX_WORDS if rpc.name == Tag.name else 0,
            )


def rpc_path(rpc: str) -> str:
    """Return the path of an RPC: `/v1/fill-mask` for FillMask."""
    return "/v1/" + "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in rpc).lstrip("-")


async def _answer(request_type: type[Message], method: JsonMethod, request: Request) -> HttpReply:
    return await method(request, await request.read(partial(rpc_request, request_type)))


def json_method(service: InferenceService, name: str) -> JsonMethod:
    """Return an RPC whose reply is JSON."""
    reply_type = GetMessageClass(ENCODER.methods_by_name[name].output_type)
    method = encoder_methods(service)[name]

    async def answer(request: Request, built: BuiltRequest) -> HttpReply:
        reply = await method(built, request.call)

        def write() -> bytes:
            return join(message_parts(reply_type.FromString(reply)))

        small = small_bytes(request.call.num_inputs) if name == Embed.name else SMALL_BYTES
        return HttpReply(await request.pool.run(request.call, len(reply), write, small=small))

    return answer


def rpc_request(request_type: type[Message], values: dict[str, Any]) -> BuiltRequest:
    """Return the request with the values of a JSON request.

    Raises:
        InvalidRequestError: when they do not fit the message: the error names the field.
    """
    values = _written_out(values, request_type.DESCRIPTOR)
    try:
        return BuiltRequest(json_format.ParseDict(values, request_type()))
    except (json_format.ParseError, ValueError, TypeError, OverflowError) as error:
        found = InvalidRequestError(violations=islice(wrong_fields(values, request_type), MAX_VIOLATIONS))
        if not found.violations:  # in protobuf's words: `inputs: repeated field must be in [] which is "a" at ...`
            reason = " ".join(str(error).replace(_PREFIX, "").rstrip(".").split())
            found = InvalidRequestError(shorten(reason))
        raise found from None


def _written_out(values: dict[str, Any], message: Descriptor) -> dict[str, Any]:
    """Return the values of a message in protobuf's JSON mapping, in which texts may stand for lists and messages."""
    found = {}
    for name, value in values.items():
        field = message.fields_by_camelcase_name.get(name) or message.fields_by_name.get(name)
        if field and field.is_repeated and isinstance(value, str | dict):
            value = [value]
        if field and field.message_type and field.is_repeated and isinstance(value, list):
            value = [_message_values(item, field.message_type) for item in value]
        elif field and field.message_type:
            value = _message_values(value, field.message_type)
        found[name] = value
    return found


def _message_values(value: Any, message: Descriptor) -> Any:
    if isinstance(value, dict):
        return _written_out(value, message)
    if isinstance(value, str) and message is pb.ModelRef.DESCRIPTOR:
        return name_and_version(value)
    return {"text": value} if isinstance(value, str) and "text" in message.fields_by_name else value


def wrong_fields(values: Mapping[str, Any], message_type: type[Message], path: Path = ()) -> Iterator[Violation]:
    """Yield the fields that are unknown or have a value of a wrong type.

    Args:
        values: values of a JSON request, or of a message in it.
        message_type: type of the message.
        path: path of the message in the request.
    """
    fields = message_type.DESCRIPTOR.fields
    by_name = {name: field for field in fields for name in (field.name, field.json_name)}
    for name, value in values.items():
        place, field = (*path, name), by_name.get(name)
        if field is None:
            known = ", ".join(item.name for item in fields)
            yield _violation(place, f"unknown field (fields: {known})")
        elif value is None:
            continue  # as if it were absent
        elif not field.is_repeated:
            yield from _wrong_value(field, value, message_type, place)
        elif not isinstance(value, list):
            yield _violation(place, "must be a list")
        else:
            for index, item in enumerate(value):
                yield from _wrong_value(field, item, message_type, (*place, index))


def _wrong_value(field: FieldDescriptor, value: Any, message_type: type[Message], path: Path) -> Iterator[Violation]:
    if field.message_type:
        if isinstance(value, dict):
            yield from wrong_fields(value, GetMessageClass(field.message_type), path)
        else:
            known = ", ".join(item.name for item in field.message_type.fields)
            yield _violation(path, f"must be an object (fields: {known})")
    elif not _fits(field, value, message_type):
        names = [item.name for item in field.enum_type.values] if field.enum_type else []
        wanted = f"one of {', '.join(names)}" if names else _WANTED[field.cpp_type]
        yield _violation(path, f"must be {wanted}")


def _fits(field: FieldDescriptor, value: Any, message_type: type[Message]) -> bool:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING and field.type == FieldDescriptor.TYPE_STRING:
        return isinstance(value, str)
    try:
        json_format.ParseDict({field.name: [value] if field.is_repeated else value}, message_type())
    except (json_format.ParseError, ValueError, TypeError, OverflowError):
        return False
    return True


def _violation(path: Path, reason: str) -> Violation:
    return Violation(shorten(path_of(path)), reason)
