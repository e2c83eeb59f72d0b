"""Request bytes -> messages, with the bad fields named where strings are not UTF-8."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from serving.errors import InvalidRequestError, Violation

MessageT = TypeVar("MessageT", bound=Message)


def parse(request_type: type[MessageT], raw: bytes) -> MessageT:
    """Parse a request.

    Raises:
        InvalidRequestError: naming the strings that are not UTF-8; without names where it is no such message at all.
    """
    try:
        return request_type.FromString(raw)
    except DecodeError as error:
        full_name = request_type.DESCRIPTOR.full_name
        violations = [Violation(path, "not UTF-8") for path in _not_utf8(request_type, raw)]
        raise InvalidRequestError(f"not a {full_name}" if not violations else "", violations) from error


def _not_utf8(request_type: type[Message], raw: bytes) -> list[str]:
    try:
        return list(_broken_fields(_twin(request_type.DESCRIPTOR).FromString(raw), request_type.DESCRIPTOR))
    except DecodeError:
        return []


@cache
def _twin(descriptor: Descriptor) -> type[Message]:
    """The same message with `bytes` wherever it has `string`: it parses what the message itself refuses."""
    file = descriptor_pb2.FileDescriptorProto()
    descriptor.file.CopyToProto(file)
    for message in file.message_type:
        _loosen(message)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(descriptor.full_name))


def _loosen(message: descriptor_pb2.DescriptorProto) -> None:
    for field in message.field:
        is_key = message.options.map_entry and field.name == "key"  # keys of maps cannot be bytes
        if field.type == field.TYPE_STRING and not is_key:
            field.type = field.TYPE_BYTES
    for nested in message.nested_type:
        _loosen(nested)


def _broken_fields(message: Message, meant: Descriptor, prefix: str = "") -> Iterator[str]:
    """Paths to what is not UTF-8 in a twin, where the message that is meant has strings."""
    for twin, value in message.ListFields():
        field, values = _values(meant.fields_by_number[twin.number], value)
        for place, item in values.items():
            path = f"{prefix}{twin.name}{place}"
            if field.message_type:
                yield from _broken_fields(item, field.message_type, f"{path}.")
            elif field.type == field.TYPE_STRING and not _is_utf8(item):
                yield path


def _values(field: FieldDescriptor, value: Any) -> tuple[FieldDescriptor, dict[str, Any]]:
    """What a field holds, by its place there, and the field that describes each of them: of a map its values'."""
    if field.message_type and field.message_type.GetOptions().map_entry:
        values = {f"[{key!r:.80}]": item for key, item in value.items()}
        return field.message_type.fields_by_name["value"], values
    return field, {f"[{i}]": item for i, item in enumerate(value)} if field.is_repeated else {"": value}


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
