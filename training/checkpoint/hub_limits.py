"""Limits for requests to a hub, which may send without end, slowly, or from one address to the next.

They hold below `huggingface_hub`, for all that it asks: each reply is read through `_Reader`.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPResponse
from typing import Any

import huggingface_hub
import requests
from requests.adapters import HTTPAdapter

MAX_LISTING_BYTES = 2**24
"""Maximum size of a listing: about 60,000 files."""
MAX_OTHER_BYTES = 2**20
"""Maximum size of other replies, such as errors, and of what is sent besides the content of a file."""
MAX_REPLIES = 100
"""Maximum number of replies for a listing or a file, with redirects and new attempts."""
SLOW_S = 60.0
"""Time in which a reply must bring MIN_BYTES, again and again."""
MIN_BYTES = 2**16
_NAMES = ("X-Repo-Commit", "X-Linked-Etag", "ETag")
"""Headers whose values the library uses as names in its cache."""
_PLAIN_NAME = re.compile(r'(W/)?"?[A-Za-z0-9][\w.-]*"?', re.ASCII)


class LimitError(Exception):
    """A hub sends what no hub should; the message states what."""


class EndlessError(LimitError):
    """A reply is longer than the hub states."""


@dataclass
class Limits:
    """Limits of the listing or the file that is asked for next."""

    max_bytes: int = MAX_LISTING_BYTES
    """Maximum size of a reply that is no error."""
    num_replies: int = field(default=0, init=False)
    readers: list[_Reader] = field(default_factory=list, init=False)
    """Readers of all replies; some may be open."""

    def start(self, num_bytes: int) -> None:
        """Begin with a file of a size."""
        self.max_bytes, self.num_replies = num_bytes + num_bytes // 8 + MAX_OTHER_BYTES, 0


class _Reader(io.RawIOBase):
    """The bytes of a reply, as they arrive."""

    def __init__(self, source: io.RawIOBase, max_bytes: int) -> None:
        self._source, self.max_bytes = source, max_bytes
        self._num_bytes = self._num_before = 0
        self._start_s = time.monotonic()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self._source.readinto(buffer)  # waits up to the timeout of the socket
        self._num_bytes += count or 0
        if self._num_bytes > self.max_bytes:
            raise EndlessError(f"sends more than {self.max_bytes:,} bytes")
        now_s = time.monotonic()
        if count and now_s > self._start_s + SLOW_S:
            if self._num_bytes < self._num_before + MIN_BYTES:
                raise LimitError(f"sends less than {MIN_BYTES:,} bytes in {SLOW_S:.0f} seconds")
            self._num_before, self._start_s = self._num_bytes, now_s
        return count

    def close(self) -> None:
        self._source.close()
        super().close()


def _reply_class(limits: Limits) -> type[HTTPResponse]:
    class Reply(HTTPResponse):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._reader = _Reader(self.fp.detach(), MAX_OTHER_BYTES)
            self.fp = io.BufferedReader(self._reader)
            limits.readers.append(self._reader)
            limits.num_replies += 1
            if limits.num_replies > MAX_REPLIES:
                raise LimitError(f"sends {MAX_REPLIES} replies without an end")

        def begin(self) -> None:
            super().begin()
            if self.status in (requests.codes.ok, requests.codes.partial_content):
                self._reader.max_bytes = limits.max_bytes

    return Reply


class _Adapter(HTTPAdapter):
    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._reply = _reply_class(limits)

    def get_connection_with_tls_context(self, *arguments: Any, **options: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*arguments, **options)
        if pool.ConnectionCls.response_class is not self._reply:
            pool.ConnectionCls = type("Connection", (pool.ConnectionCls,), {"response_class": self._reply})
        return pool

    def send(self, request: requests.PreparedRequest, *arguments: Any, **options: Any) -> requests.Response:
        request.headers["Accept-Encoding"] = "identity"
        response = super().send(request, *arguments, **options)
        try:
            _check_headers(response)
        except LimitError:
            response.close()
            raise
        response.headers.pop("X-Xet-Hash", None)  # its own client has no limits
        return response


def _check_headers(response: requests.Response) -> None:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise LimitError("sends a compressed reply, which nobody asked for")
    for name in _NAMES if response.request.method == "HEAD" else ():
        value = response.headers.get(name, "none")
        if not _PLAIN_NAME.fullmatch(value):
            raise LimitError(f"sends `{name}: {value!r:.100}`, which is no name of a file in the cache")


@contextmanager
def limited() -> Iterator[Limits]:
    """Limit the requests of `huggingface_hub` in this block; afterwards its default session is back."""
    limits, sessions = Limits(), list[requests.Session]()

    def session() -> requests.Session:
        sessions.append(requests.Session())
        sessions[-1].mount("http://", _Adapter(limits))
        sessions[-1].mount("https://", _Adapter(limits))
        return sessions[-1]

    huggingface_hub.configure_http_backend(session)
    try:
        yield limits
    finally:
        huggingface_hub.configure_http_backend()
        for item in sessions:
            item.close()
        for reader in limits.readers:
            reader.close()
