"""Text files as other programs write them: UTF-16 and UTF-32 are refused, carriage returns alone end lines.

The client has the same file, as neither package may import the other; a test compares them.
"""

from __future__ import annotations

import codecs
import io
import unicodedata
from typing import BinaryIO, cast

START_BYTES = 8192
"""Size of the beginning that decides on the encoding."""
MAX_LINE_BYTES = 2**24
"""Size of a first line without a line feed, after which carriage returns are the ends of lines."""
_BOMS = {
    codecs.BOM_UTF32_LE: "UTF-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_BLANK = "\t\n\v\f\r\x1a"
"""Control characters that text files have; the last one ends files of DOS."""


def text_stream(stream: BinaryIO, name: str) -> BinaryIO:
    """Return a stream of UTF-8 lines that end with a line feed.

    Args:
        stream: at its beginning; whoever opened it closes it.
        name: for the message.

    Raises:
        ValueError: when the text is UTF-16 or UTF-32.
    """
    reader = stream if hasattr(stream, "peek") else io.BufferedReader(cast(io.RawIOBase, stream))
    start = reader.peek(START_BYTES)[:START_BYTES]
    refuse_wide(start, name)
    if b"\r" not in start.rstrip(b"\r") or b"\n" in start:
        return cast(BinaryIO, reader)
    first = reader.readline(MAX_LINE_BYTES)
    lines = _FromFirstLine(first, cast(BinaryIO, reader), old_mac=not first.endswith(b"\n"))
    return cast(BinaryIO, io.BufferedReader(lines))


def refuse_wide(start: bytes, name: str) -> None:
    """Check that a text is neither UTF-16 nor UTF-32.

    Args:
        start: the first bytes of the text, or all of them.
        name: for the message.

    Raises:
        ValueError: saying how to convert it.
    """
    if encoding := wide_encoding(start[:START_BYTES]):
        raise ValueError(f"{name} is {encoding}, not UTF-8; convert it: iconv -f {encoding} -t UTF-8 old.txt > new.txt")


def wide_encoding(start: bytes) -> str:
    """Return the UTF-16 or UTF-32 encoding that a text begins in, as iconv calls it; empty for all others.

    Without a byte order mark, the bytes that stand for the upper half of each character give it away: few different
    ones, which are control characters to UTF-8.
    """
    for bom, encoding in _BOMS.items():
        if start.startswith(bom):
            return encoding
    if len(start) < 4:  # a single character tells nothing
        return ""
    found = [encoding for encoding in ("UTF-32LE", "UTF-32BE") if _decoded(start, encoding)]
    if found or not _looks_binary(start):
        return "".join(found)
    texts = {encoding: _decoded(start, encoding) for encoding in ("UTF-16LE", "UTF-16BE")}
    found = [encoding for encoding, text in texts.items() if text and (not _is_utf8(start) or _is_narrow(text))]
    return min(found, key=lambda encoding: len({ord(char) >> 8 for char in texts[encoding]}), default="")


def _decoded(start: bytes, encoding: str) -> str:
    """The text in an encoding; empty where it would hold what no text holds."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(start)  # leaves out half a character at the end
    except UnicodeDecodeError:
        return ""
    return "" if any(map(_is_odd, text)) else text


def _is_odd(char: str) -> bool:
    return char not in _BLANK and unicodedata.category(char) in ("Cc", "Cn", "Co")


def _looks_binary(start: bytes) -> bool:
    return any(_is_odd(chr(byte)) for byte in set(start) if byte < 128)


def _is_utf8(start: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return True


def _is_narrow(text: str) -> bool:
    """Whether the upper bytes of most characters are control characters: those of all alphabets, not of ideographs."""
    return sum(ord(char) < 0x2000 for char in text) > len(text) / 2


class _FromFirstLine(io.RawIOBase):
    """A first line that was read, and the stream after it; with `old_mac`, line feeds stand for carriage returns."""

    def __init__(self, first: bytes, rest: BinaryIO, *, old_mac: bool) -> None:
        self._first, self._rest, self._old_mac = io.BytesIO(first), rest, old_mac
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._rest.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if (offset, whence) != (0, io.SEEK_CUR):
            self._first, self._position = io.BytesIO(), self._rest.seek(offset, whence)
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._first.read(len(buffer)) or self._rest.read(len(buffer))
        buffer[: len(data)] = data.replace(b"\r", b"\n") if self._old_mac else data
        self._position += len(data)
        return len(data)
