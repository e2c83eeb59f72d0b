"""Requests on the wire: heads, parsed by httptools, and the framing of bodies (RFC 9112, sections 6 and 7)."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import httptools

MAX_HEADERS = 128
"""Maximum number of headers of a request."""
MAX_LINE_BYTES = 256
"""Maximum size of the line before a chunk, extensions included, and of a trailer."""
MAX_FRAMING_BYTES = 2 * 2**20
"""Maximum size of all such lines of a body: some 400,000 chunks, which take half a second."""
_SIZE = re.compile(rb"[0-9a-fA-F]{1,15}")


class MalformedRequestError(Exception):
    """Request that is not HTTP/1.1 as this server reads it: status and reason, and what is wrong."""

    def __init__(self, reason: str, status: str = "400 Bad Request") -> None:
        super().__init__(reason)
        self.status = status


class Head:
    """Method, target and headers of a request."""

    def __init__(self, data: bytes) -> None:
        """Parse a head.

        Raises:
            MalformedRequestError: when it is malformed, or has too many headers.
        """
        self.headers: list[tuple[bytes, bytes]] = []
        """Names, in lower case, and values."""
        self.keeps_alive = False
        """True if the client wants to send more requests on the connection."""
        self._target = b""
        self._parser = parser = httptools.HttpRequestParser(self)
        try:
            with suppress(httptools.HttpParserUpgrade):  # declined: the body that follows is that of this request
                parser.feed_data(data)
            url = httptools.parse_url(self._target)
        except httptools.HttpParserError:
            raise MalformedRequestError("the request is malformed") from None
        finally:
            del self._parser  # refers to this object: a cycle
        self.method = parser.get_method().decode("ascii")
        self.raw_path, self.query = url.path or b"/", url.query or b""
        self.version = parser.get_http_version()
        if self.version not in ("1.0", "1.1"):
            raise MalformedRequestError("only HTTP/1.1 is spoken here", "505 HTTP Version Not Supported")
        if len(self.headers) > MAX_HEADERS:
            raise MalformedRequestError(f"more than {MAX_HEADERS} headers", "431 Request Header Fields Too Large")
        if len(hosts := self.values(b"host")) > 1 or (self.version == "1.1" and not hosts):
            raise MalformedRequestError(f"{len(hosts)} headers `host`; send one")

    def on_url(self, part: bytes) -> None:
        """Take a part of the target."""
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Take what the parser forgets after the head."""
        self.keeps_alive = self._parser.should_keep_alive()

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of all headers of this name."""
        return [value for found, value in self.headers if found == name]

    def body(self) -> Body | ChunkedBody:
        """Return the reader of the body that follows.

        Raises:
            MalformedRequestError: when it is encoded in another way than in chunks.
        """
        if codings := self.values(b"transfer-encoding"):
            if [item.strip().lower() for item in codings] != [b"chunked"]:
                raise MalformedRequestError("transfer-encoding must be chunked", "501 Not Implemented")
            return ChunkedBody()
        lengths = self.values(b"content-length")  # the parser has checked them
        return Body(int(lengths[0]) if lengths else 0)

    def scope(self, **more: Any) -> dict[str, Any]:
        """Return the ASGI scope of the request."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self.version,
            "method": self.method,
            "path": unquote(self.raw_path.decode("ascii")),
            "raw_path": self.raw_path,
            "query_string": self.query,
            "root_path": "",
            "headers": self.headers,
            **more,
        }


class Body:
    """Reader of a body whose length is known."""

    def __init__(self, num_bytes: int) -> None:
        self._num_left = num_bytes

    @property
    def is_complete(self) -> bool:
        """True once all of the body was taken."""
        return not self._num_left

    def take(self, data: bytearray) -> bytes:
        """Remove what belongs to the body from the received bytes, and return it."""
        part = bytes(data[: self._num_left])
        del data[: len(part)]
        self._num_left -= len(part)
        return part


class ChunkedBody:
    """Reader of a body in chunks. Too many of them are refused: each costs as much as a large one."""

    def __init__(self) -> None:
        self.is_complete = False
        self._num_left = 0
        """Bytes that are left of a chunk."""
        self._ends_chunk = self._in_trailers = False
        self._num_framing = 0

    def take(self, data: bytearray) -> bytes:
        """Remove the next chunks, as far as they have arrived, and return their content.

        Raises:
            MalformedRequestError: when the framing is wrong, or too large.
        """
        parts = []
        while not self.is_complete:
            if self._num_left:
                part = bytes(data[: self._num_left])
                del data[: len(part)]
                parts.append(part)
                self._num_left -= len(part)
                if self._num_left:
                    break
                self._ends_chunk = True
            if (line := self._line(data)) is None:
                break
            if self._ends_chunk:
                if line:
                    raise MalformedRequestError("a chunk is longer than its size says")
                self._ends_chunk = False
            elif self._in_trailers:
                self.is_complete = not line
            else:
                size = line.partition(b";")[0].rstrip(b" \t")
                if not _SIZE.fullmatch(size):
                    raise MalformedRequestError("a chunk has no size")
                self._num_left = int(size, 16)
                self._in_trailers = not self._num_left
        return b"".join(parts)

    def _line(self, data: bytearray) -> bytes | None:
        """Remove a line and return it without its end; None if its end has not arrived."""
        if (end := data.find(b"\n", 0, MAX_LINE_BYTES + 2) + 1) == 0:
            if len(data) > MAX_LINE_BYTES:
                raise MalformedRequestError(f"the line of a chunk has more than {MAX_LINE_BYTES} bytes")
            return None
        line = bytes(data[:end])
        del data[:end]
        self._num_framing += end
        if not line.endswith(b"\r\n"):
            raise MalformedRequestError("the line of a chunk has no \\r before its end")
        if self._num_framing > MAX_FRAMING_BYTES:
            raise MalformedRequestError(f"the lines of its chunks have more than {MAX_FRAMING_BYTES} bytes")
        return line[:-2]
