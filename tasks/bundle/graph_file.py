"""Scan an ONNX file for the names of its weight files and its number of positions.

Reads no weights, and does not need the package `onnx`, which a server does not install.

Source: onnx.proto3 of ONNX 1.19 for field numbers, protobuf.dev/programming-guides/encoding for the encoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from tasks.text.json_files import open_regular

_MESSAGES = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
"""Message -> field number -> message in that field, for all messages that may contain tensors."""
_DIMS, _NAME = 1, 8
_KEY, _VALUE = 1, 2
_READ = {_DIMS, _NAME, _KEY, _VALUE}
"""Fields that are read. A message has few of these, and possibly many others, such as weights."""
_LOCATION = b"location"
_POSITIONS = (
    *("embeddings.position.weight", "position_embeddings.weight"),
    *("rotary.global.cos", "rotary.global.frequencies", "relative.buckets"),
)
"""Last parts of the names of tables with a row for each position, in our graphs and in those of transformers."""
_MAX_NAME_BYTES = 4096


def has_positions(name: str) -> bool:
    """Return whether a table of this name has a row for each position."""
    return name.endswith(_POSITIONS)


@dataclass(frozen=True)
class GraphFile:
    """Properties of a graph that are checked before it is loaded."""

    weight_files: frozenset[str] = frozenset()
    """Names of the files next to the graph that hold weights."""
    num_positions: int | None = None
    """Longest sequence; None without a table of positions under a known name."""


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    start: int
    """Position of its first byte; for a number, the number itself."""
    end: int


def read_graph_file(path: Path) -> GraphFile:
    """Scan a graph up to its first broken byte; ONNX Runtime refuses broken graphs later.

    Raises:
        ValueError, OSError: as `open_regular`.
    """
    names, lengths = set[str](), list[int]()
    with open_regular(path) as file, suppress(EOFError):
        size = path.stat().st_size
        pending = [("model", 0, size)]
        while pending:
            message, start, end = pending.pop()
            inner = _MESSAGES.get(message, {})
            fields = [item for item in _fields(file, start, end) if item.number in inner or item.number in _READ]
            if message == "entry":
                names.update(_locations(file, fields))
            elif message == "tensor":
                lengths += _num_positions(file, fields)
            pending += [(inner[item.number], item.start, item.end) for item in fields if item.number in inner]
    return GraphFile(frozenset(names), min(lengths, default=None))


def _fields(file: BufferedReader, start: int, end: int) -> Iterator[_Field]:
    """Yield the fields of a message. Fields of a group count as its own: better to find too many than too few."""
    while start < end:
        file.seek(start)
        tag = _number(file)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value = _number(file)
            yield _Field(number, value, value)
        size = _number(file) if kind == 2 else {1: 8, 5: 4}.get(kind, 0)
        start = file.tell() + size
        if start > end or kind > 5:
            raise EOFError
        if kind == 2:
            yield _Field(number, start - size, start)


def _number(file: BufferedReader) -> int:
    value = shift = 0
    while shift < 70:
        byte = file.read(1)
        if not byte:
            break
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return value
        shift += 7
    raise EOFError


def _text(file: BufferedReader, field: _Field) -> bytes:
    file.seek(field.start)
    return file.read(min(field.end - field.start, _MAX_NAME_BYTES))


def _locations(file: BufferedReader, fields: list[_Field]) -> Iterator[str]:
    if any(_text(file, item) == _LOCATION for item in fields if item.number == _KEY):
        for item in fields:
            if item.number == _VALUE:
                yield _text(file, item).decode(errors="replace")


def _num_positions(file: BufferedReader, fields: list[_Field]) -> list[int]:
    names = [_text(file, item).decode(errors="replace") for item in fields if item.number == _NAME]
    if not any(map(has_positions, names)):
        return []
    for item in fields:
        if item.number == _DIMS:  # one number, or several packed into bytes
            if item.start == item.end:
                return [item.start]
            file.seek(item.start)
            return [_number(file)]
    return []
