"""Text files of other programs: refuse UTF-16 and UTF-32, read lone carriage returns as line ends.

The client has a copy of this file, since neither package may import the other; a test compares them.
"""

from __future__ import annotations

import codecs
import io
import unicodedata
from typing import BinaryIO, cast

START_BYTES = 8192
"""Bytes at the beginning of a file from which its encoding is detected."""
MAX_LINE_BYTES = 2**24
"""Longest first line without a line feed; after it, carriage returns are taken for line ends."""
_BOMS = {
    codecs.BOM_UTF32_LE: "UTF-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_TEXT_CONTROLS = "\t\n\v\f\r\x1a"
"""Control characters of text files; the last one ends files of DOS."""


def text_stream(stream: BinaryIO, name: str) -> BinaryIO:
    """Return a stream of UTF-8 lines that end with a line feed.

    Args:
        stream: at its beginning; the caller closes it.
        name: for the message.

    Raises:
        ValueError: when the text is UTF-16 or UTF-32.
    """
    reader = stream if hasattr(stream, "peek") else io.BufferedReader(cast(io.RawIOBase, stream))
    start = reader.peek(START_BYTES)[:START_BYTES]
    refuse_utf16(start, name)
    if b"\r" not in start.rstrip(b"\r") or b"\n" in start:
        return cast(BinaryIO, reader)
    first = reader.readline(MAX_LINE_BYTES)
    lines = _PrependedStream(first, cast(BinaryIO, reader), old_mac=not first.endswith(b"\n"))
    return cast(BinaryIO, io.BufferedReader(lines))


def refuse_utf16(start: bytes, name: str) -> None:
    """Raise ValueError, with the command that converts the text, if it is UTF-16 or UTF-32.

    Args:
        start: the first bytes of the text, or all of them.
        name: for the message.
    """
    if encoding := detect_utf16(start[:START_BYTES]):
        raise ValueError(f"{name} is {encoding}, not UTF-8; convert it: iconv -f {encoding} -t UTF-8 old.txt > new.txt")


def detect_utf16(start: bytes) -> str:
    """Return the name that iconv has for the UTF-16 or UTF-32 encoding of a text; empty for any other encoding.

    Without a byte order mark, the upper bytes of the characters are the sign: they take few different values, which are
    control characters in UTF-8.
    """
    for bom, encoding in _BOMS.items():
        if start.startswith(bom):
            return encoding
    if len(start) < 4:  # one character is not enough to decide
        return ""
    found = [encoding for encoding in ("UTF-32LE", "UTF-32BE") if _decode(start, encoding)]
    if found or not _looks_binary(start):
        return "".join(found)
    texts = {encoding: _decode(start, encoding) for encoding in ("UTF-16LE", "UTF-16BE")}
    found = [encoding for encoding, text in texts.items() if text and (not _is_utf8(start) or _is_alphabetic(text))]
    return min(found, key=lambda encoding: len({ord(char) >> 8 for char in texts[encoding]}), default="")


def _decode(start: bytes, encoding: str) -> str:
    """Return the text in an encoding; empty if it has characters that no text has."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(start)  # drops half a character at the end
    except UnicodeDecodeError:
        return ""
    return "" if any(map(_is_no_text, text)) else text


def _is_no_text(char: str) -> bool:
    return char not in _TEXT_CONTROLS and unicodedata.category(char) in ("Cc", "Cn", "Co")


def _looks_binary(start: bytes) -> bool:
    return any(_is_no_text(chr(byte)) for byte in set(start) if byte < 128)


def _is_utf8(start: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return True


def _is_alphabetic(text: str) -> bool:
    """Return whether most characters lie below U+2000: letters of alphabets do, ideographs do not."""
    return sum(ord(char) < 0x2000 for char in text) > len(text) / 2


class _PrependedStream(io.RawIOBase):
    """Stream of a first line already read, and the rest. With `old_mac`, carriage returns become line feeds."""

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
