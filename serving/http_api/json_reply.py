"""JSON of replies, made in parts: one step of a serializer holds the interpreter lock until it ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from itertools import islice
from typing import Any

import numpy as np
import orjson
from google.protobuf import json_format
from google.protobuf.message import Message

PART_NUMBERS = 32_768
"""Numbers that are written in one step, in a millisecond or two."""


def join(parts: Iterable[bytes]) -> bytes:
    """Return the parts as one."""
    file = BytesIO()  # returns its content without a copy
    file.writelines(parts)
    return file.getvalue()


def list_parts(items: Iterable[Any], size: int = 1) -> Iterator[bytes]:
    """Yield a JSON list of items, `size` of them at a time. They may hold arrays."""
    rest, comma = iter(items), b""
    yield b"["
    while block := list(islice(rest, size)):
        yield comma + dumps(block)[1:-1]
        comma = b","
    yield b"]"


def array_parts(array: np.ndarray) -> Iterator[bytes]:
    """Yield the numbers of a one-dimensional array as a JSON list."""
    yield b"["
    for start in range(0, len(array), PART_NUMBERS):
        yield (b"," if start else b"") + dumps(array[start : start + PART_NUMBERS])[1:-1]
    yield b"]"


def object_parts(values: dict[str, Any], **lists: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a JSON object.

    Args:
        values: its small fields.
        lists: its large fields, each in parts.
    """
    yield dumps(values)[:-1]
    comma = b"," if values else b""
    for name, parts in lists.items():
        yield comma + dumps(name) + b":"
        yield from parts
        comma = b","
    yield b"}"


def message_parts(message: Message) -> Iterator[bytes]:
    """Yield a message in protobuf's JSON mapping, with the names of the proto; each message inside is a part."""
    nested = {
        field.name: list(getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if field.message_type and field.is_repeated and not field.message_type.GetOptions().map_entry
    }
    for name in nested:
        message.ClearField(name)
    values = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    for name in nested:
        values.pop(name, None)
    return object_parts(values, **{name: nested_parts(map(message_parts, items)) for name, items in nested.items()})


def nested_parts(items: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Yield a JSON list of items that are in parts, too."""
    yield b"["
    for number, parts in enumerate(items):
        if number:
            yield b","
        yield from parts
    yield b"]"


def dumps(values: Any) -> bytes:
    """Return values, which may hold arrays, as JSON in one step."""
    return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
