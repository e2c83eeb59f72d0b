"""JSON of bodies and replies, in pieces: a parser or serializer holds the interpreter lock until it ends.

Bodies are read strictly: one that two parsers read differently is refused. An empty object of three bytes takes seventy
in memory, so values are counted before they are made. A piece of a large body ends at a comma, or inside a long string,
and gets the brackets that are open around it: `{"texts": ["a"` becomes `{"texts": ["a"]}`, and what follows,
`, "b"], "n": 1}`, becomes `{"KEY": [null, "b"], "n": 1}`. The values of a piece are then added to those that are open
since the pieces before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from itertools import islice
from typing import Any, NamedTuple

import jiter
import numpy as np
import orjson
from google.protobuf import json_format
from google.protobuf.message import Message

from serving.core.errors import InvalidRequestError, lower_first, shorten

PIECE_BYTES = 32 * 1024
"""Bytes that are parsed or searched at a time, in a few milliseconds whatever they are."""
UNCOUNTED_BYTES, UNCOUNTED_VALUES = 4 * 1024, 1000
"""Size of a body whose values need no count, and number of commas and brackets up to which this holds for a piece."""
NO_OBJECT = "the body must be a JSON object: `{...}`"
STRING_BYTES, NUMBER_BYTES, CONTAINER_BYTES = 80, 40, 250
"""Bytes of memory per string besides its text, per number, and per object or list."""
PART_NUMBERS = 32_768
"""Numbers that are written in one step, in a millisecond or two."""
WHOLE_BYTES = 1024
"""Size of a message that is written in one step."""
VECTOR_BYTES, MAX_VECTORS = 8 * 1024, 64
"""Size and number of vectors that are written on the event loop, in a fifth of a millisecond."""
_SECOND, _FIRST = rb"\\u[dD][c-fC-F][\da-fA-F]{2}", rb"\\u[dD][89abAB][\da-fA-F]{2}"
"""Escapes of the second and the first half of a surrogate pair."""
_HALF = re.compile("(lone leading surrogate in|unexpected end of) hex escape")
"""Words of the parser for one half without the other."""
_KEY = os.urandom(8).hex()
"""Key of the object that is open around a piece; no body can know it."""
_PLACE = re.compile(r" at line (\d+) column (\d+)$")


def small_bytes(num_vectors: int) -> int:
    """Return the size up to which so many vectors are written on the event loop."""
    return VECTOR_BYTES if num_vectors <= MAX_VECTORS else 0


def parse_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON body that must be an object.

    Raises:
        InvalidRequestError: when it is not JSON in UTF-8, nests too deeply, repeats a key, or holds NaN, infinity or
            half of a surrogate pair; or when it is something else than an object.
    """
    if not data.strip():
        raise InvalidRequestError("the body is empty; send JSON")
    found = _Pieces(data).parse()
    if not isinstance(found, dict):
        raise InvalidRequestError(NO_OBJECT)
    return found


def memory_of_values(data: bytes, max_values: int, check: Callable[[], None]) -> int:
    """Count the values of a JSON body; return the bytes of memory that they take besides its text, at most.

    Args:
        data: body.
        max_values: maximum number of strings, objects and lists.
        check: called regularly; raises an error when nobody waits for the request any more.

    Raises:
        InvalidRequestError: when there are more values.
    """
    num_quotes = num_containers = num_commas = 0
    kept = b""
    for start in range(0, len(data), PIECE_BYTES):
        check()
        piece = _without_escapes(kept + data[start : start + PIECE_BYTES])
        kept = b"\\" if piece.endswith(b"\\") else b""  # its escape ends in the next piece
        parts = piece.split(b'"')
        outside = b"".join(parts[num_quotes % 2 :: 2])
        num_quotes += len(parts) - 1
        num_commas += outside.count(b",")
        num_containers += outside.count(b"{") + outside.count(b"[")
        if num_quotes // 2 + num_containers > max_values:
            raise InvalidRequestError(
                f"the body holds more than {max_values} texts, objects and lists; send several requests"
            )
    return STRING_BYTES * num_quotes // 2 + CONTAINER_BYTES * num_containers + NUMBER_BYTES * num_commas


def has_few_values(data: bytes) -> bool:
    """Return whether a body is so small that its values need no count."""
    if len(data) <= UNCOUNTED_BYTES:
        return True
    return len(data) <= PIECE_BYTES and sum(map(data.count, (b",", b"[", b"{"))) <= UNCOUNTED_VALUES


def path_of(parts: Iterable[str | int]) -> str:
    """Return the path of a field: `inputs[3].text`; `body` for the whole body."""
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or "body"


class _Cut(NamedTuple):
    """End of a piece."""

    end: int
    brackets: bytes
    """Brackets of the piece, outside strings."""
    in_string: bool
    """True if the piece ends after the quote that begins a long string."""


class _Pieces:
    """Parser of one body."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._root: Any = None
        self._open: list[Any] = []
        """Lists and objects that are open at the end of the last piece, outermost first."""

    def parse(self) -> Any:
        """Return the values of the body."""
        start, size = 0, len(self._data)
        if size <= PIECE_BYTES:
            return self._value(self._data, 0)
        while start < size:
            cut = self._cut(start)
            text = self._data[start : cut.end]
            is_open = [isinstance(item, dict) for item in self._open]
            kept = len(is_open)
            for bracket in cut.brackets:
                if bracket in b"{[":
                    is_open.append(bracket == ord("{"))
                elif is_open:
                    is_open.pop()
                    kept = min(kept, len(is_open))
            if cut.in_string:
                if is_open and is_open[-1] and not text[:-1].rstrip().endswith(b":"):
                    raise InvalidRequestError(f"the body holds a key of more than {PIECE_BYTES // 2} bytes")
                text += b'"'
            elif text.rstrip().endswith((b"[", b"{")) and cut.end < size:
                text += b","  # no piece may hide that nothing is before the comma
            closing = b"".join(b"}" if item else b"]" for item in reversed(is_open)) if cut.end < size else b""
            self._merge(self._value(self._opening() + text + closing, start), kept, len(is_open))
            start = cut.end
            if cut.in_string:
                start = self._read_string(start)
        if self._open:
            self._value(self._opening(), size - 1)  # raises: the body ends too early
        return self._root

    def _cut(self, start: int) -> _Cut:
        """Return the end of the piece that begins at a place: the end of the body, its last comma outside strings, or
        the start of a string that is longer than a piece."""
        size = PIECE_BYTES
        while (end := start + size) < len(self._data):
            parts = _without_escapes(self._data[start:end]).split(b'"')
            place = end
            for number in range(len(parts) - 1, -1, -1):
                place -= len(parts[number])
                if number % 2 == 0 and (comma := parts[number].rfind(b",", 0 if number else 1)) >= 0:
                    parts[number] = parts[number][:comma]
                    return _Cut(place + comma, _brackets(parts[: number + 1]), in_string=False)
                place -= 1  # quote
            if len(parts) % 2 == 0:
                return _Cut(end - len(parts[-1]), _brackets(parts), in_string=True)
            if size > PIECE_BYTES:
                raise InvalidRequestError(f"the body holds {size} bytes without a text or a comma; send plain JSON")
            size *= 2
        parts = _without_escapes(self._data[start:]).split(b'"')
        return _Cut(len(self._data), _brackets(parts), in_string=False)

    def _opening(self) -> bytes:
        """Return the brackets that are open before a piece, and a value to which the piece can add others."""
        if not self._open:
            return b""
        return b"".join(b'{"%b":' % _KEY.encode() if isinstance(item, dict) else b"[" for item in self._open) + b"null"

    def _merge(self, piece: Any, num_kept: int, num_open: int) -> None:
        """Merge a parsed piece.

        Args:
            piece: its values.
            num_kept: number of lists and objects that are open before and after the piece.
            num_open: number of those that are open after it.
        """
        if not self._open:
            self._root = piece
        for container in self._open:
            if isinstance(container, dict):
                first = piece.pop(_KEY)
                if repeated := container.keys() & piece.keys():
                    raise InvalidRequestError(
                        shorten(f'the body is not JSON: detected duplicate key "{min(repeated)}"')
                    )
                container.update(piece)
            else:
                first = piece[0]
                container.extend(piece[1:])
            piece = first
        del self._open[num_kept:]
        while len(self._open) < num_open:
            last = self._open[-1] if self._open else [self._root]
            self._open.append(last[next(reversed(last))] if isinstance(last, dict) else last[-1])

    def _read_string(self, start: int) -> int:
        """Read a long string, which is an empty one in the values so far; return the place after it."""
        parts: list[str] = []
        place, is_whole = start, False
        while not is_whole:
            window = _without_escapes(self._data[place : place + PIECE_BYTES])
            if is_whole := (end := window.find(b'"')) >= 0:
                end += place
            elif place + PIECE_BYTES >= len(self._data):
                self._value(b'"' + self._data[place:], place)  # raises: the string has no end
            else:
                end = self._end_of_characters(place + len(window))
            parts.append(self._value(b'"%b"' % self._data[place:end], place))
            place = end
        text = "".join(parts)
        if not self._open:
            raise InvalidRequestError(NO_OBJECT)
        if isinstance(parent := self._open[-1], dict):
            parent[next(reversed(parent))] = text
        else:
            parent[-1] = text
        return place + 1

    def _end_of_characters(self, end: int) -> int:
        """Return the last place up to `end`, inside a string, at which no character or surrogate pair is cut."""
        data = self._data
        window = _without_escapes(data[end - PIECE_BYTES : end])
        if (escape := window.rfind(b"\\", PIECE_BYTES - 6)) >= 0:
            end -= PIECE_BYTES - escape
            window = window[:escape]
        if re.match(_SECOND, data[end : end + 6]) and re.fullmatch(_FIRST, window[-6:]):
            end -= 6
        return end - next((step for step in range(4) if data[end - step] & 0xC0 != 0x80), 0)

    def _value(self, text: bytes, start: int) -> Any:
        """Parse a piece with the brackets around it.

        Args:
            text: piece with brackets.
            start: place of the piece in the body.
        """
        try:
            return jiter.from_json(text, allow_inf_nan=False, catch_duplicate_keys=True)
        except ValueError as error:
            reason = _HALF.sub("half of a surrogate pair, which is no character,", lower_first(str(error)))
            if place := _PLACE.search(reason):
                lines = text.split(b"\n")[: int(place[1])]
                offset = sum(len(line) + 1 for line in lines[:-1]) + int(place[2])
                is_part_of_string = text.startswith(b'"') and start > 0
                offset = start + max(1, offset - (1 if is_part_of_string else len(self._opening()))) - 1
                line, begin = self._data.count(b"\n", 0, offset) + 1, self._data.rfind(b"\n", 0, offset)
                reason = f"{reason[: place.start()]} at line {line} column {offset - begin}"
            raise InvalidRequestError(f"the body is not JSON: {reason}") from None


def _without_escapes(data: bytes) -> bytes:
    """Return data of the same size in which no quote is escaped, and each backslash that is left begins an escape."""
    return data.replace(rb"\\", b"__").replace(rb"\"", b"__")


def _brackets(parts: list[bytes]) -> bytes:
    """Return the brackets outside strings, given the parts between quotes; the first one is outside."""
    return re.sub(rb"[^][{}]+", b"", b"".join(parts[::2]))


def join(parts: Iterable[bytes]) -> bytes:
    """Return the parts as one."""
    file = BytesIO()  # returns its content without a copy
    file.writelines(parts)
    return file.getvalue()


def dumps(values: Any) -> bytes:
    """Return values, which may hold arrays, as JSON in one step."""
    return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)


def nested_parts(items: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Yield a JSON list of items that are in parts, too."""
    yield b"["
    for number, parts in enumerate(items):
        if number:
            yield b","
        yield from parts
    yield b"]"


def list_parts(items: Iterable[Any], size: int = 1) -> Iterator[bytes]:
    """Yield a JSON list of items, `size` of them at a time. They may hold arrays."""
    rest = iter(items)
    blocks = iter(lambda: list(islice(rest, size)), [])
    return nested_parts([dumps(block)[1:-1]] for block in blocks)


def array_parts(array: np.ndarray) -> Iterator[bytes]:
    """Yield the numbers of a one-dimensional array as a JSON list."""
    starts = range(0, len(array), PART_NUMBERS)
    return nested_parts([dumps(array[start : start + PART_NUMBERS])[1:-1]] for start in starts)


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


def message_values(message: Message) -> dict[str, Any]:
    """Return a message in protobuf's JSON mapping, with the names of the proto."""
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def message_parts(message: Message) -> Iterator[bytes]:
    """Yield the JSON of a message; if it is large, each message inside is a part."""
    if message.ByteSize() <= WHOLE_BYTES:
        return iter([dumps(message_values(message))])
    nested = {
        field.name: list(getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if field.message_type and field.is_repeated and not field.message_type.GetOptions().map_entry
    }
    for name in nested:
        message.ClearField(name)
    values = {name: value for name, value in message_values(message).items() if name not in nested}
    return object_parts(values, **{name: nested_parts(map(message_parts, items)) for name, items in nested.items()})
