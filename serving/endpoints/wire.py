"""Request bytes -> messages, with the bad fields named where strings are not UTF-8.

Protobuf holds the interpreter lock until it has parsed all that it was given, and an empty message of two bytes takes
up to a hundred bytes of memory. So large requests are parsed in pieces, and refused once they hold too many parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from serving.core.errors import MAX_VIOLATIONS, InvalidRequestError, Violation

MessageT = TypeVar("MessageT", bound=Message)

PIECE_BYTES = 64 * 1024
"""Bytes that are parsed at once: one to three milliseconds where they are all empty messages."""
MAX_WORDS = 2**18
"""Most words of a `Tag` request that comes in words: an empty one takes two bytes, and a hundred to be tokenised."""
CHECKED = 256
"""Strings that are checked at once."""
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_VARINTS = {
    FieldDescriptor.TYPE_BOOL,
    FieldDescriptor.TYPE_ENUM,
    *(getattr(FieldDescriptor, f"TYPE_{kind}{size}") for kind in ("INT", "UINT", "SINT") for size in (32, 64)),
}


def _nothing() -> None:
    """Go on."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Limits on the reading of a request."""

    max_parts: int = 10_000
    """Most fields of a request, more than any honest one has. They are counted before they are parsed; fields of
    messages that hold no further messages are not."""
    max_words: int = MAX_WORDS
    """Most words, which are counted apart."""
    check: Callable[[], None] = _nothing
    """Called now and then; raises when nobody waits for the request any more."""


def parse(request_type: type[MessageT], raw: bytes, reading: Reading = Reading()) -> MessageT:
    """Parse a request.

    Raises:
        InvalidRequestError: naming the strings that are not UTF-8, or the field that holds too much; without names
            where it is no such message at all.
    """
    try:
        return _parsed(request_type, raw, reading)
    except DecodeError as error:
        full_name = request_type.DESCRIPTOR.full_name
        violations = [Violation(path, "not UTF-8") for path in _not_utf8(request_type, raw, reading)]
        raise InvalidRequestError(f"not a {full_name}" if not violations else "", violations) from error


def _parsed(message_type: type[MessageT], raw: bytes, reading: Reading) -> MessageT:
    if len(raw) <= PIECE_BYTES:
        return message_type.FromString(raw)
    message = message_type()
    _Merger(raw, reading).merge(message, _layout(message_type.DESCRIPTOR), 0, len(raw))
    return message


class _Field(NamedTuple):
    """Properties of a field that parsing in pieces needs."""

    name: str
    is_repeated: bool
    is_packed: bool
    """Holds many numbers, each of any length."""
    layout: _Layout | None
    """Layout of the message that the field holds; None where that is an entry of a map, or no message."""
    is_deep: bool
    """Whether fields of that message have to be counted one by one: messages, and words."""
    is_word: bool


_Layout = Mapping[int, _Field]
"""Fields by number, of one type of message."""
_WORDS = {"bertline.v1.TagInput.words"}


@cache
def _layout(descriptor: Descriptor) -> _Layout:
    return {
        field.number: _Field(
            name=field.name,
            is_repeated=field.is_repeated,
            is_packed=field.is_repeated and field.type in _VARINTS,
            layout=None if not (kind := field.message_type) or _is_entry(kind) else _layout(kind),
            is_deep=bool(kind) and not _is_entry(kind) and any(map(_is_counted, kind.fields)),
            is_word=field.full_name in _WORDS,
        )
        for field in descriptor.fields
    }


def _is_counted(field: FieldDescriptor) -> bool:
    return bool(field.message_type) or field.full_name in _WORDS


def _is_entry(descriptor: Descriptor) -> bool:
    return bool(descriptor.GetOptions().map_entry)


class _Merger:
    """Parses a request piece by piece; other threads run between two pieces."""

    def __init__(self, raw: bytes, reading: Reading) -> None:
        self._raw = raw
        self._reading = reading
        self._num_parts = self._num_words = 0

    def merge(self, message: Message, layout: _Layout, place: int, end: int, outer: str = "") -> None:
        """Merge the fields that stand from one place to another into a message.

        Args:
            outer: field of the request that holds the message.

        Raises:
            DecodeError: when these bytes are no fields.
            InvalidRequestError: when the request has too many parts.
        """
        piece, raw = place, self._raw
        while place < end:
            first, tag = place, raw[place]
            if tag & 0x87 == _LENGTH and first + 1 < end and (size := raw[first + 1]) < 0x80:  # nearly all are such
                number, start, place = tag >> 3, first + 2, first + 2 + size
                if place > end:
                    raise DecodeError("a field that is cut off")
            else:
                number, start, place = self._field(first, end)
            field = layout.get(number)
            if field and field.is_word:
                self._num_words += 1
                self._check(outer, self._num_words, self._reading.max_words, "words")
            else:
                self._num_parts += 1
                name = outer or (field.name if field else "unknown fields")
                self._check(name, self._num_parts, self._reading.max_parts, "items and parts of items")
            size = place - first
            if start and field and (field.is_deep or size > PIECE_BYTES) and (field.layout or field.is_packed):
                self._take(message, piece, first)
                self._enter(message, field, first, start, place, outer)
                piece = place
            elif place - piece > PIECE_BYTES:
                self._take(message, piece, first)
                piece = first
        self._take(message, piece, end)

    def _enter(self, message: Message, field: _Field, first: int, start: int, end: int, outer: str) -> None:
        """Merge a field whose content is merged in pieces."""
        if field.layout is None:
            self._take_packed(message, self._raw[first : first + _varint_size(self._raw, first)], start, end)
            return
        inner = getattr(message, field.name)
        if field.is_repeated:
            inner = inner.add()
        else:
            inner.SetInParent()
        self.merge(inner, field.layout, start, end, outer or field.name)

    def _take(self, message: Message, start: int, end: int) -> None:
        if start < end:
            self._reading.check()
            message.MergeFromString(self._raw[start:end])

    def _take_packed(self, message: Message, tag: bytes, start: int, end: int) -> None:
        """Merge many packed numbers as several fields: to protobuf, that is the same."""
        while start < end:
            stop = min(start + PIECE_BYTES, end)
            while stop < end and self._raw[stop - 1] & 0x80:  # in the middle of a number
                stop += 1
            self._reading.check()
            message.MergeFromString(tag + _varint(stop - start) + self._raw[start:stop])
            start = stop

    def _check(self, name: str, count: int, most: int, what: str) -> None:
        if count > most:
            raise InvalidRequestError(
                violations=[Violation(name, f"more than {most} {what} came; send several requests")]
            )
        if not count % 1024:
            self._reading.check()

    def _field(self, place: int, end: int) -> tuple[int, int, int]:
        """Return the number of the field that begins at a place, where its content begins (0 for a field without a
        length), and where it ends."""
        tag, place = self._read_varint(place, end)
        kind, start = tag & 7, 0
        if kind == _LENGTH:
            size, start = self._read_varint(place, end)
            place = start + size
        elif kind == _VARINT:
            _, place = self._read_varint(place, end)
        elif kind in (_FIXED64, _FIXED32):
            place += 8 if kind == _FIXED64 else 4
        else:
            raise DecodeError("a group, which none of our messages has")
        if place > end:
            raise DecodeError("a field that is cut off")
        return tag >> 3, start, place

    def _read_varint(self, place: int, end: int) -> tuple[int, int]:
        """Return a number, and where it ends."""
        raw, value, shift = self._raw, 0, 0
        while place < end and shift < 70:
            byte = raw[place]
            place += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, place
            shift += 7
        raise DecodeError("a number that does not end")


def joined(parts: Iterable[Message]) -> bytes:
    """Serialise a message in parts, each with some of its fields: serialising a large one at once holds the interpreter
    lock."""
    return b"".join(part.SerializeToString() for part in parts)


def elements(number: int, values: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a repeated field, serialised, in parts. Joining them releases the interpreter lock, unlike protobuf.

    Args:
        number: of the field.
        values: strings, or messages that are serialised already.
    """
    for value in values:
        yield header(number, len(value))
        yield value


def header(number: int, num_bytes: int) -> bytes:
    """Return the bytes that stand before the content of a field: its tag, and the length of the content."""
    return _varint(number << 3 | _LENGTH) + _varint(num_bytes)


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def _varint_size(raw: bytes, place: int) -> int:
    return next(size for size in range(1, 11) if raw[place + size - 1] < 0x80)


def _not_utf8(request_type: type[Message], raw: bytes, reading: Reading) -> list[str]:
    """Return the paths of strings that are not UTF-8: the first ones, more than an error lists."""
    try:
        twin = _parsed(_twin(request_type.DESCRIPTOR), raw, reading)
    except DecodeError:
        return []
    return list(islice(_broken_fields(twin, request_type.DESCRIPTOR, reading), MAX_VIOLATIONS))


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


def _broken_fields(message: Message, meant: Descriptor, reading: Reading, prefix: str = "") -> Iterator[str]:
    """Yield the paths of fields of a twin that are not UTF-8, where the original message has strings."""
    for twin, value in message.ListFields():
        field, path = meant.fields_by_number[twin.number], f"{prefix}{twin.name}"
        if (kind := field.message_type) and _is_entry(kind):
            field = kind.fields_by_name["value"]
            parts: Iterator[tuple[str, Any]] = ((f"{path}[{key!r:.80}]", item) for key, item in value.items())
        elif field.is_repeated:
            parts = _numbered(path, value, field, reading)
        else:
            parts = iter([(path, value)])
        for place, item in parts:
            if field.message_type:
                yield from _broken_fields(item, field.message_type, reading, f"{place}.")
            elif field.type == field.TYPE_STRING and not _is_utf8(item):
                yield place


def _numbered(path: str, values: Any, field: FieldDescriptor, reading: Reading) -> Iterator[tuple[str, Any]]:
    """The elements of a field that may be broken, with their paths."""
    for first in range(0, len(values), CHECKED):
        reading.check()
        chunk: Sequence[Any] = values[first : first + CHECKED]
        if field.message_type or (field.type == field.TYPE_STRING and not _is_utf8(b" ".join(chunk))):
            yield from ((f"{path}[{first + index}]", item) for index, item in enumerate(chunk))


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
