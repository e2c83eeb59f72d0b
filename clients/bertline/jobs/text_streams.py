"""Text files of other programs: refuse UTF-16 and UTF-32, read lone carriage returns as line ends."""

from __future__ import annotations

import io
import re
from typing import BinaryIO, cast

START_BYTES = 8192
"""Bytes at the beginning of a file that decide how it is read."""
_WIDE = re.compile(
    rb"(?P<UTF_32>\xff\xfe\0\0|\0\0\xfe\xff)|(?P<UTF_16>\xff\xfe|\xfe\xff)|"
    rb"(?P<UTF_16LE>(?:[^\0]\0){2})|(?P<UTF_16BE>(?:\0[^\0]){2})",
    re.DOTALL,
)
"""Beginning of a text in another encoding, by a byte order mark or two ASCII characters."""


def text_stream(stream: BinaryIO, name: str) -> BinaryIO:
    """Return a stream of UTF-8 lines; without any line feed, carriage returns are the line ends.

    Args:
        stream: at its beginning; the caller closes it.
        name: for the message.

    Raises:
        ValueError: when the text is UTF-16 or UTF-32.
    """
    reader = stream if hasattr(stream, "peek") else io.BufferedReader(cast(io.RawIOBase, stream))
    start = reader.peek(START_BYTES)[:START_BYTES]
    if found := _WIDE.match(start):
        encoding = str(found.lastgroup).replace("_", "-")
        raise ValueError(f"{name} is {encoding}, not UTF-8; convert it: iconv -f {encoding} -t UTF-8 old.txt > new.txt")
    if b"\r" not in start.rstrip(b"\r") or b"\n" in start:
        return cast(BinaryIO, reader)
    return cast(BinaryIO, io.BufferedReader(_OldMacText(cast(BinaryIO, reader))))


class _OldMacText(io.RawIOBase):
    """Stream with line feeds in place of carriage returns."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._stream.read(len(buffer)).replace(b"\r", b"\n")
        buffer[: len(data)] = data
        return len(data)
