"""Reading of request bodies within limits of size, values, memory and time."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from serving.core.admission import RequestLimits
from serving.core.calls import Call, num_bytes
from serving.core.codec_pool import CodecPool
from serving.core.errors import InvalidRequestError, MessageTooLargeError, ReceivingError, UnsupportedMediaError
from serving.core.request_memory import CALL_BYTES, RequestMemory
from serving.http_api.exchange import Exchange
from serving.http_api.json_body import has_few_values, memory_of_values, parse_object

GZIP_WINDOW = 16 + zlib.MAX_WBITS
"""Argument of zlib for the format of gzip."""
MAX_RATIO = 1032
"""Largest ratio at which gzip compresses."""

T = TypeVar("T")


class DisconnectedError(Exception):
    """Client that hung up, so that nobody waits for a reply."""


@dataclass(frozen=True, slots=True)
class Body:
    """Body of a request."""

    data: bytes
    call: Call
    pool: CodecPool
    max_values: int
    """Maximum number of strings, objects and lists."""

    async def read(self, build: Callable[[dict[str, Any]], T], size: int | None = None) -> T:
        """Parse the JSON, and return what `build` makes of its values, in a thread if it is large.

        Args:
            build: checks and converts the values; should not keep them.
            size: size of the JSON, if other bytes follow.

        Raises:
            InvalidRequestError: when it is not a JSON object, or holds too many values.
            NoRoomError: when its values need more memory than is free.
        """
        data, call = self.data[:size], self.call
        if not has_few_values(data):
            count = partial(memory_of_values, data, self.max_values, call.check)
            call.reserve_memory(await self.pool.run(call, len(data), count))
        return await self.pool.run(call, len(data), lambda: build(parse_object(data)))


class BodyReader:
    """Reads the bodies of requests."""

    def __init__(
        self, memory: RequestMemory, pool: CodecPool, limits: RequestLimits, max_bytes: int, receive_s: float
    ) -> None:
        """Set the limits.

        Args:
            memory: memory of received requests.
            pool: threads that unpack and parse bodies.
            limits: limits on the inputs of a request, which bound the values of a body.
            max_bytes: maximum size of a body, also after decompression.
            receive_s: maximum seconds in which a body must arrive.
        """
        self._max_values = 2 * limits.max_fields
        self._memory = memory
        self._pool = pool
        self._max_bytes = max_bytes
        self._receive_s = receive_s

    async def read(self, call: Call, exchange: Exchange, max_words: int = 0) -> Body:
        """Return the body of a request, decompressed. Reserve memory for it until `close`; a small one waits for it.

        Args:
            call: record of the call.
            exchange: request that is being answered.
            max_words: number of values that the body may hold besides those of every request.

        Raises:
            MessageTooLargeError: when it has too many bytes.
            ReceivingError: when it does not arrive in time.
            NoRoomError: when too much memory is in use.
            UnsupportedMediaError: when it is compressed in another way than gzip.
            InvalidRequestError: when it is not gzip although it should be.
            DisconnectedError: when the client hangs up.
        """
        self._memory.open(call)
        coding = call.headers.get("content-encoding", "").lower().removeprefix("x-")
        if coding not in ("", "identity", "gzip"):
            raise UnsupportedMediaError(f"unknown content-encoding: `{coding[:40]}`; send gzip, or plain JSON")
        if length := call.headers.get("content-length"):
            self._check_size(self._max_bytes + 1 if (size := num_bytes(length)) is None else size)
        try:
            async with asyncio.timeout_at(self._limit(call)):
                data = await self._receive(call, exchange)
        except TimeoutError:
            raise ReceivingError(
                f"the body did not arrive within {self._receive_s:g} s (--receive-s); send it faster"
            ) from None
        call.request_bytes = len(data)
        if num_more := len(data) - call.reserved_bytes:
            await self._memory.reserve(call, num_more)
        if coding == "gzip":
            data = await self._pool.run(call, MAX_RATIO * len(data), partial(self._decompressed, data))
            call.request_bytes = len(data)
            await self._memory.reserve(call, len(data))
        return Body(data, call, self._pool, self._max_values + max_words)

    def close(self, call: Call) -> None:
        """Free the memory of a request."""
        self._memory.close(call)

    async def hold_reply(self, call: Call, exchange: Exchange, num_bytes: int) -> None:
        """Reserve memory for a reply until it has been sent, if it is not that of a health check.

        Raises:
            NoRoomError: when too much memory is in use.
            MessageTooLargeError: when the client does not accept as many bytes.
        """
        call.check_reply(num_bytes)
        if not call.is_health:
            exchange.release = await self._memory.hold(call.connection, num_bytes)

    def _limit(self, call: Call) -> float:
        """Return the time until which the body must arrive, on the clock of the event loop."""
        left_s = self._receive_s
        if call.deadline_s is not None:
            left_s = min(left_s, call.deadline_s - time.monotonic())
        return asyncio.get_running_loop().time() + left_s

    async def _receive(self, call: Call, exchange: Exchange) -> bytes:
        """Return the body of a request. Reserve memory for a large one as it arrives."""
        parts: list[bytes] = []
        size = 0
        while not exchange.is_read:
            message = await exchange.receive()
            if message["type"] == "http.disconnect":
                raise DisconnectedError
            if part := message.get("body", b""):
                size += len(part)
                self._check_size(size)
                if size > CALL_BYTES:
                    call.reserve_memory(size - call.reserved_bytes)
                parts.append(part)
            exchange.is_read = not message.get("more_body", False)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _decompressed(self, data: bytes) -> bytes:
        decoder = zlib.decompressobj(GZIP_WINDOW)
        try:
            found = decoder.decompress(data, self._max_bytes + 1)
        except zlib.error:
            raise InvalidRequestError("the body is not gzip, although `content-encoding` says so") from None
        self._check_size(len(found))
        if not decoder.eof or decoder.unused_data:
            raise InvalidRequestError("the gzip body is cut off, or followed by other bytes")
        return found

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise MessageTooLargeError(
                f"the body has more than `{self._max_bytes}` bytes (--max-request-bytes); send fewer or shorter inputs "
                "in a request"
            )
