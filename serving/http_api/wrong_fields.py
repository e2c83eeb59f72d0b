"""Fields of a JSON request that do not fit its protobuf message: each with its path and what it must be.

protobuf's own errors name one field, and no path that programs can read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from serving.core.errors import Violation, shorten
from serving.http_api.json_body import path_of

Path = tuple[str | int, ...]
_WANTED = {
    FieldDescriptor.CPPTYPE_STRING: "a string",
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_UINT32: f"an integer from 0 to {2**32 - 1}",
}


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
        yield _violation(path, f"must be {_wanted(field)}")


def _fits(field: FieldDescriptor, value: Any, message_type: type[Message]) -> bool:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING and field.type == FieldDescriptor.TYPE_STRING:
        return isinstance(value, str)
    try:
        json_format.ParseDict({field.name: [value] if field.is_repeated else value}, message_type())
    except (json_format.ParseError, ValueError, TypeError, OverflowError):
        return False
    return True


def _wanted(field: FieldDescriptor) -> str:
    if field.enum_type:
        return f"one of {', '.join(item.name for item in field.enum_type.values)}"
    return _WANTED[field.cpp_type]


def _violation(path: Path, reason: str) -> Violation:
    return Violation(shorten(path_of(path)), reason)
