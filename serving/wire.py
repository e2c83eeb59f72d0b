"""Request bytes -> messages, with the bad fields named where strings are not UTF-8."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TypeVar

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor
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
        return list(_broken_fields(_twin(request_type.DESCRIPTOR).FromString(raw), ""))
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
        if field.type == field.TYPE_STRING and not message.options.map_entry:  # keys of maps cannot be bytes
            field.type = field.TYPE_BYTES
    for nested in message.nested_type:
        _loosen(nested)


def _broken_fields(message: Message, prefix: str) -> Iterator[str]:
    for field, value in message.ListFields():
        name = prefix + field.name
        values = {f"{name}[{i}]": item for i, item in enumerate(value)} if field.is_repeated else {name: value}
        for path, item in values.items():
            if isinstance(item, Message):
                yield from _broken_fields(item, f"{path}.")
            elif isinstance(item, bytes) and not _is_utf8(item):
                yield path


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
