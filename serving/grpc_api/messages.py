"""Receiving and answering of messages, within limits of size and memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from serving.core.calls import Call
from serving.core.errors import InvalidRequestError, MessageTooLargeError, NoRoomError, UnreadRepliesError
from serving.core.request_memory import RETRY_S, RequestMemory
from serving.grpc_api.connections import UnreadReplies
from serving.grpc_api.receiving import Receiver

MAX_UNREAD_BYTES = 128 * 2**20
"""Bytes of unread replies above which further calls of a connection are refused."""
MAX_HEALTH_BYTES = 4096
"""Maximum bytes of a message of health or reflection: a name. Their calls may stay open for long."""
_SMALL = (f"/{health.SERVICE_NAME}/", f"/{reflection.SERVICE_NAME}/")

Behaviour = Callable[[Any, Any], Any]
Deserialize = Callable[[bytes], Any]


class Messages:
    """Receives the messages of calls and answers them. Counts the memory of requests, and of replies until sent."""

    def __init__(
        self, receiver: Receiver, memory: RequestMemory, unread: UnreadReplies, max_request_bytes: int
    ) -> None:
        """Set up receiving and answering.

        Args:
            receiver: receives the messages.
            memory: memory of received requests.
            unread: unread replies, which count against the same budget.
            max_request_bytes: maximum size of a request. gRPC's own limit must be above it.
        """
        self._receiver = receiver
        self._memory = memory
        self._unread = unread
        self._max_request_bytes = max_request_bytes

    async def answer_one(self, behaviour: Behaviour, deserialize: Deserialize, call: Call, context: Any) -> Any:
        """Receive the message of a call, and return the reply."""
        try:
            data = await self._receiver.message(call.connection, context)
            call.request_bytes = len(data)
            self._check_request(call)
            request = _deserialize(deserialize, data)
            if not call.is_health:  # its messages are small, and watches do not keep them
                self._memory.open(call)
                await self._memory.reserve(call, len(data))
            del data
            reply = await behaviour(request, context)
        finally:
            self._memory.close(call)
        call.reply_bytes = len(reply) if isinstance(reply, bytes) else 0
        await self._check_reply(call)
        self._unread.add(call.connection, call.reply_bytes)
        return reply

    async def answer_all(self, behaviour: Behaviour, deserialize: Deserialize, call: Call, context: Any) -> Any:
        """Answer a call whose client sends many messages."""

        async def requests() -> AsyncIterator[Any]:
            async for data in self._receiver.messages(call.connection, context):
                call.request_bytes = len(data)
                self._check_request(call)
                yield _deserialize(deserialize, data)

        return await behaviour(requests(), context)

    def _check_request(self, call: Call) -> None:
        """Raise MessageTooLargeError, or UnreadRepliesError if the connection reads no replies."""
        limit, name = self._max_request_bytes, "--max-request-bytes"
        if call.path.startswith(_SMALL):
            limit, name = min(limit, MAX_HEALTH_BYTES), "health and reflection"
        if call.request_bytes > limit:
            raise MessageTooLargeError(
                f"the message is too large: `{call.request_bytes}` bytes (maximum `{limit}`, {name}); "
                "send fewer or shorter inputs per call"
            )
        if (unread := self._unread[call.connection]) > MAX_UNREAD_BYTES:
            raise UnreadRepliesError(
                f"{unread / 2**20:.0f} MiB of replies wait to be read by this connection; read them before "
                "sending more calls"
            )

    async def _check_reply(self, call: Call) -> None:
        """Raise MessageTooLargeError if the client does not accept the reply, NoRoomError if the memory is used up."""
        call.check_reply(call.reply_bytes)
        is_first_health = call.is_health and not self._unread[call.connection]
        fits = partial(self._unread.fits, call.connection, call.reply_bytes)
        if not is_first_health and not await self._memory.budget.fits_soon(fits, call.reply_bytes):
            raise NoRoomError(f"no room for a reply of {call.reply_bytes} bytes; try later", retry_s=RETRY_S)


def _deserialize(deserialize: Deserialize, data: bytes) -> Any:
    try:
        return deserialize(data)
    except DecodeError:
        raise InvalidRequestError("the message cannot be parsed as a request of this method") from None
