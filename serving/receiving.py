"""How messages come: so many at one time, in turns of their connections, each within a time limit.

gRPC takes 32 KiB of a message that nobody asked for, and all of it once a handler does. So calls ask one after the
other: what is small is there at once, what is not within MOMENT_S is large or slow, and of such only so many may come
as their memory allows. Where they are more, the connection with most of them loses one.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from serving.errors import NoMessageError, ReceivingError, abort, drop_frames
from serving.turns import Turns
from serving.uncancelled import uncancelled

WINDOW_BYTES = 32 * 1024
"""Of a message that gRPC takes before a handler asks for it."""
MOMENT_S = 0.025
"""A message that takes no longer is not large and slow."""
MAX_QUICK = 8
"""Messages that are asked for and have had no more than a moment to come."""
MIN_SLOW = 4
MIN_WAITING = 2048
"""Calls that wait for their turn, of all connections: as many as come in a burst."""
PATIENCE_S = 2.0
"""A slow message is given up for others that wait once it has had so long."""
RETRY_S = 1.0
GONE_S = 1.0
"""A call without a message has mostly been cancelled, of which its handler hears a little later."""


@dataclass(slots=True, eq=False)
class _Reader:
    connection: str
    context: Any
    started_s: float
    given_up: asyncio.Future[None] | None = None
    """Ends the call; its error is the one that gRPC wants to see raised."""


class Receiving:
    """Takes the messages of all calls. Lives in one event loop."""

    def __init__(
        self,
        num_bytes: int,
        max_message_bytes: int,
        limit_s: float,
        refused: Callable[[Exception], None],
    ) -> None:
        """Make it.

        Args:
            num_bytes: that messages may take while they come, beside what comes in a moment.
            max_message_bytes: gRPC's own limit of one.
            limit_s: within which a message must have come.
            refused: told of each message that is given up.
        """
        self._refused = refused
        self._giving_up: set[asyncio.Future[None]] = set()
        self._max_slow = max(MIN_SLOW, num_bytes // max_message_bytes)
        self._max_of_connection = self._max_slow // 2
        self._max_waiting = max(MIN_WAITING, num_bytes // WINDOW_BYTES)
        self._limit_s = limit_s
        self._quick: dict[_Reader, None] = {}
        self._slow: dict[_Reader, None] = {}
        self._num_quick = 0
        """That were let in: each has its place in `_quick`, or is about to take it."""
        self._asking: defaultdict[str, int] = defaultdict(int)
        """Quick and slow ones by connection."""
        self._waiting: Turns[asyncio.Future[None]] = Turns()
        self._timer: asyncio.TimerHandle | None = None

    async def message(self, connection: str, context: Any) -> bytes:
        """The next message of a call.

        Raises:
            ReceivingError: when there is no room for it, or it does not come in time.
            NoMessageError: when the client ends its side without one.
        """
        message = await self._read(connection, context)
        if message is grpc.aio.EOF:
            await asyncio.sleep(GONE_S)
            raise NoMessageError("the call came without a message")
        return message  # type: ignore[no-any-return]

    async def messages(self, connection: str, context: Any) -> AsyncIterator[bytes]:
        """The messages of a call until the client ends its side."""
        while (message := await self._read(connection, context)) is not grpc.aio.EOF:
            yield message

    async def _read(self, connection: str, context: Any) -> Any:
        if self._may(connection):
            self._let_in(connection)
        else:
            await self._turn(connection)
        reader = _Reader(connection, context, time.monotonic())
        self._quick[reader] = None
        if not self._timer:
            self._timer = asyncio.get_running_loop().call_later(MOMENT_S, self._look)
        try:
            message = await uncancelled(context.read())
            if reader.given_up:  # just before the message was there
                await asyncio.wait([reader.given_up])
                reader.given_up.result()
            return message
        finally:
            if reader in self._quick:
                del self._quick[reader]
                self._num_quick -= 1
            else:
                del self._slow[reader]
            self._leave(connection)

    def _may(self, connection: str) -> bool:
        return self._num_quick < MAX_QUICK and self._asking.get(connection, 0) < self._max_of_connection

    def _let_in(self, connection: str) -> None:
        self._num_quick += 1
        self._asking[connection] += 1

    async def _turn(self, connection: str) -> None:
        """Wait until a connection may ask for another message, which then counts as let in."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.put(connection, turn)
        if len(self._waiting) > self._max_waiting:
            late = self._waiting.take_back()
            if not late.done():
                late.set_exception(ReceivingError("too many calls wait to be received; try later", retry_s=RETRY_S))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and not turn.exception():
                self._num_quick -= 1
                self._leave(connection)
            raise

    def _leave(self, connection: str) -> None:
        """One message of a connection is there, or given up: others may come."""
        self._asking[connection] -= 1
        if not self._asking[connection]:
            del self._asking[connection]
        self._let_others_in()

    def _let_others_in(self) -> None:
        while self._waiting and (turn := self._waiting.take(self._may)):
            if not turn[1].done():
                self._let_in(turn[0])
                turn[1].set_result(None)

    def _look(self) -> None:
        """Take those that do not come in a moment for slow, and give up the slow ones that are too many or too late."""
        now = time.monotonic()
        for reader in [item for item in self._quick if now - item.started_s >= MOMENT_S]:
            del self._quick[reader]
            self._num_quick -= 1
            self._slow[reader] = None
        coming = [item for item in self._slow if not item.given_up]
        while len(coming) > self._max_slow:
            reader = self._surplus(coming, now)
            coming.remove(reader)
            self._give_up(reader, ReceivingError("too many messages are on their way; try later", retry_s=RETRY_S))
        for reader in self._late(coming, now):
            self._give_up(reader, ReceivingError("the message came too slowly; try later", retry_s=RETRY_S))
        for reader in [item for item in coming if now - item.started_s >= self._limit_s]:
            self._give_up(reader, ReceivingError(f"the message did not come within {self._limit_s:g} s"))
        self._let_others_in()
        again = self._quick or self._slow or self._waiting
        self._timer = asyncio.get_running_loop().call_later(MOMENT_S, self._look) if again else None

    def _surplus(self, coming: list[_Reader], now: float) -> _Reader:
        """The oldest one of the connection with most; the newest of all where each has one, unless one had its time."""
        connection, count = Counter(item.connection for item in coming).most_common(1)[0]
        if count > 1:
            return next(item for item in coming if item.connection == connection)
        return coming[0] if now - coming[0].started_s >= PATIENCE_S else coming[-1]

    def _late(self, coming: list[_Reader], now: float) -> list[_Reader]:
        """The oldest one of each connection that lets other calls of its own wait too long."""
        oldest: dict[str, _Reader] = {}
        for reader in coming:
            oldest.setdefault(reader.connection, reader)
        blocked = [name for name in self._waiting.callers() if self._asking.get(name, 0) >= self._max_of_connection]
        return [oldest[name] for name in blocked if name in oldest and now - oldest[name].started_s >= PATIENCE_S]

    def _give_up(self, reader: _Reader, error: Exception) -> None:
        """End the call, whose read then raises: gRPC would lose the memory of the message for good were the read
        cancelled instead (grpc/grpc issue 43360)."""
        if not reader.given_up:
            self._refused(error)
            reader.given_up = asyncio.ensure_future(abort(reader.context, error))
            self._giving_up.add(reader.given_up)
            reader.given_up.add_done_callback(self._has_given_up)

    def _has_given_up(self, given_up: asyncio.Future[None]) -> None:
        self._giving_up.discard(given_up)
        if not given_up.cancelled():
            drop_frames(given_up.exception())
