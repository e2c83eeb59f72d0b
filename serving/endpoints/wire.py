"""Wire format of protobuf: parse requests in pieces, serialise replies in parts.

Protobuf holds the interpreter lock until it has parsed all bytes that it was given, and an empty message of two bytes
takes up to a hundred bytes of memory. So large requests are parsed in pieces, and refused if they have too many fields.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from serving.core.errors import InvalidRequestError, Violation
from serving.core.limits import ParseLimits

MessageT = TypeVar("MessageT", bound=Message)

PIECE_BYTES = 64 * 1024
"""Bytes to parse in one step: one to three milliseconds if all of them are empty messages."""
DEFAULT_LIMITS = ParseLimits()
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_VARINT_TYPES = {
    FieldDescriptor.TYPE_BOOL,
    FieldDescriptor.TYPE_ENUM,
    *(getattr(FieldDescriptor, f"TYPE_{kind}{size}") for kind in ("INT", "UINT", "SINT") for size in (32, 64)),
}


@dataclass(frozen=True, slots=True)
class SerializedRequest:
    """Request as it came over the wire."""

    request_type: type[Message]
    data: bytes

    @property
    def num_bytes(self) -> int:
        """Size of the request."""
        return len(self.data)

    def digest(self) -> bytes:
        """Return a digest of all bytes."""
        return hashlib.sha256(self.data).digest()

    def parse(self, limits: ParseLimits) -> Any:
        """Return the message; see `parse`."""
        return parse(self.request_type, self.data, limits)


class BuiltRequest:
    """Request that a front has built of what it has received, within its own limits. It is not parsed again."""

    def __init__(self, message: Message, body: bytes = b"") -> None:
        """Set the message. Call this in a thread if it is large: protobuf serialises a message to learn its size.

        Args:
            message: message of the endpoint.
            body: what the front has received, if it holds more than the message.
        """
        self._message, self._body = message, body
        self.num_bytes = len(body) or message.ByteSize()
        """Size of the request, serialised."""

    def digest(self) -> bytes:
        """Return a digest of the body, or of the message serialised."""
        return hashlib.sha256(self._body or self._message.SerializeToString(deterministic=True)).digest()

    def parse(self, limits: ParseLimits) -> Any:
        """Return the message."""
        return self._message


def parse(request_type: type[MessageT], data: bytes, limits: ParseLimits = DEFAULT_LIMITS) -> MessageT:
    """Parse a request.

    Raises:
        InvalidRequestError: when the bytes are not a message of this type, or a field has too many items.
    """
    try:
        if len(data) <= PIECE_BYTES:
            return request_type.FromString(data)
        message = request_type()
        _PieceParser(data, limits).merge(message, _layout(request_type.DESCRIPTOR), 0, len(data))
        return message
    except DecodeError as error:
        name = request_type.DESCRIPTOR.full_name
        raise InvalidRequestError(f"the message is not a `{name}`, or holds a string that is not UTF-8") from error


class _Field(NamedTuple):
    """Properties of a field that parsing in pieces needs."""

    name: str
    is_repeated: bool
    is_packed: bool
    """True for packed varints."""
    layout: _Layout | None
    """Layout of the message that the field holds; None for map entries and fields that hold no message."""
    is_deep: bool
    """True if the fields of that message are counted one by one, because they hold messages or words."""
    is_word: bool


_Layout = Mapping[int, _Field]
"""Fields of a message type by number."""
_WORD_FIELDS = {"bertline.v1.TagInput.words"}


@cache
def _layout(descriptor: Descriptor) -> _Layout:
    return {
        field.number: _Field(
            name=field.name,
            is_repeated=field.is_repeated,
            is_packed=field.is_repeated and field.type in _VARINT_TYPES,
            layout=None if not (kind := field.message_type) or _is_map_entry(kind) else _layout(kind),
            is_deep=bool(kind) and not _is_map_entry(kind) and any(map(_is_counted, kind.fields)),
            is_word=field.full_name in _WORD_FIELDS,
        )
        for field in descriptor.fields
    }


def _is_counted(field: FieldDescriptor) -> bool:
    return bool(field.message_type) or field.full_name in _WORD_FIELDS


def _is_map_entry(descriptor: Descriptor) -> bool:
    return bool(descriptor.GetOptions().map_entry)


class _PieceParser:
    """Parses a request piece by piece, so that other threads run between two pieces."""

    def __init__(self, data: bytes, limits: ParseLimits) -> None:
        self._data = data
        self._limits = limits
        self._num_fields = self._num_words = 0

    def merge(self, message: Message, layout: _Layout, place: int, end: int, outer: str = "") -> None:
        """Merge the fields between two places of the data into a message.

        Args:
            message: message to merge into.
            layout: layout of its type.
            place, end: first byte, and the byte after the last.
            outer: field of the request that holds the message.

        Raises:
            DecodeError: when the bytes are not valid fields.
            InvalidRequestError: when the request has too many fields.
        """
        piece, data = place, self._data
        while place < end:
            first, tag = place, data[place]
            if tag & 0x87 == _LENGTH and first + 1 < end and (size := data[first + 1]) < 0x80:  # nearly all fields
                number, start, place = tag >> 3, first + 2, first + 2 + size
                if place > end:
                    raise DecodeError("a field is cut off")
            else:
                number, start, place = self._field(first, end)
            field = layout.get(number)
            if field and field.is_word:
                self._num_words += 1
                self._check_count(outer, self._num_words, self._limits.max_words, "words")
            else:
                self._num_fields += 1
                name = outer or (field.name if field else "unknown fields")
                self._check_count(name, self._num_fields, self._limits.max_fields, "values, nested ones included")
            size = place - first
            if start and field and (field.is_deep or size > PIECE_BYTES) and (field.layout or field.is_packed):
                self._merge_piece(message, piece, first)
                self._merge_inner(message, field, number, start, place, outer)
                piece = place
            elif place - piece > PIECE_BYTES:
                self._merge_piece(message, piece, first)
                piece = first
        self._merge_piece(message, piece, end)

    def _merge_inner(self, message: Message, field: _Field, number: int, start: int, end: int, outer: str) -> None:
        """Merge a field whose content is merged in pieces."""
        if field.layout is None:
            self._merge_packed(message, number, start, end)
            return
        inner = getattr(message, field.name)
        if field.is_repeated:
            inner = inner.add()
        else:
            inner.SetInParent()
        self.merge(inner, field.layout, start, end, outer or field.name)

    def _merge_piece(self, message: Message, start: int, end: int) -> None:
        if start < end:
            self._limits.check()
            message.MergeFromString(self._data[start:end])

    def _merge_packed(self, message: Message, number: int, start: int, end: int) -> None:
        """Merge packed numbers as several fields, which protobuf concatenates."""
        while start < end:
            stop = min(start + PIECE_BYTES, end)
            while stop < end and self._data[stop - 1] & 0x80:  # inside a number
                stop += 1
            self._limits.check()
            message.MergeFromString(header(number, stop - start) + self._data[start:stop])
            start = stop

    def _check_count(self, name: str, count: int, limit: int, what: str) -> None:
        if count > limit:
            raise InvalidRequestError(violations=[Violation(name, f"more than {limit} {what}; send several requests")])
        if not count % 1024:
            self._limits.check()

    def _field(self, place: int, end: int) -> tuple[int, int, int]:
        """Return the number of the field at a place, the start of its content (0 for a field without a length), and its
        end."""
        tag, place = self._read_varint(place, end)
        wire_type, start = tag & 7, 0
        if wire_type == _LENGTH:
            size, start = self._read_varint(place, end)
            place = start + size
        elif wire_type == _VARINT:
            _, place = self._read_varint(place, end)
        elif wire_type in (_FIXED64, _FIXED32):
            place += 8 if wire_type == _FIXED64 else 4
        else:
            raise DecodeError("a group, which no message of the server has")
        if place > end:
            raise DecodeError("a field is cut off")
        return tag >> 3, start, place

    def _read_varint(self, place: int, end: int) -> tuple[int, int]:
        """Return a number and its end."""
        data, value, shift = self._data, 0, 0
        while place < end and shift < 70:
            byte = data[place]
            place += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, place
            shift += 7
        raise DecodeError("a number does not end")


def serialize_elements(number: int, values: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a repeated field, serialised in parts. Joining them releases the interpreter lock, unlike protobuf.

    Args:
        number: number of the field.
        values: strings, or serialised messages.
    """
    for value in values:
        yield header(number, len(value))
        yield value


def header(number: int, num_bytes: int) -> bytes:
    """Return the bytes before the content of a field: its tag, and the length of the content."""
    return _varint(number << 3 | _LENGTH) + _varint(num_bytes)


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])
