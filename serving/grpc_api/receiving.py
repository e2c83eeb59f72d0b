"""Receiving of messages: a bounded number at a time, connections in turn, each message within a time limit.

gRPC buffers 32 KiB of a message before a handler asks for it, and all of it afterwards. So calls ask one after the
other. A small message is there at once; one that is not complete within MOMENT_S is large or slow, and only as many of
those may come at a time as the memory allows. Where there are more, the connection with most of them loses one.

Connections whose messages came at once go first, then those of which nothing is known, then those that were slow:
otherwise calls that are begun without a message would keep all others waiting.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NoReturn

import grpc

from serving.core.errors import NoMessageError, ReceivingError, drop_tracebacks
from serving.core.round_robin import RoundRobinQueue
from serving.grpc_api.status import abort
from serving.grpc_api.uncancelled import uncancelled

WINDOW_BYTES = 32 * 1024
"""Bytes of a message that gRPC buffers before a handler asks for it."""
MOMENT_S = 0.025
"""A message that takes longer is large or slow, and counts as slow."""
MAX_QUICK = 8
"""Messages at a time that were asked for less than MOMENT_S ago."""
MIN_SLOW = 4
MIN_WAITING = 2048
"""Calls of all connections that may at least wait for their turn: as many as come in a burst."""
PATIENCE_S = 2.0
"""Seconds after which a slow message is given up where others wait."""
RETRY_S = 1.0
GONE_S = 1.0
"""Wait before a call without a message is refused: mostly it was cancelled, and its handler learns that a little
later."""


SLOW_S = 60.0
"""Seconds for which a connection counts as slow."""
MAX_KNOWN = 8192
"""Connections whose standing is remembered: those that were heard of last."""


class _Standing(IntEnum):
    """How the messages of a connection came."""

    PROMPT = 0
    UNKNOWN = 1
    SLOW = 2


FIRST = (_Standing.PROMPT, _Standing.UNKNOWN, _Standing.PROMPT, _Standing.SLOW)
"""Which connections go first, turn by turn; the others follow in their order."""


@dataclass(slots=True, eq=False)
class _Reader:
    connection: str
    context: Any
    started_s: float
    given_up: asyncio.Future[NoReturn] | None = None
    """Task that aborts the call; gRPC expects its error to be raised by the handler."""


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
            num_bytes: memory for slow messages on their way.
            max_message_bytes: gRPC's own limit of a message.
            limit_s: seconds within which a message must have come.
            refused: called with the error of each message that is given up.
        """
        self._refused = refused
        self._giving_up: set[asyncio.Future[NoReturn]] = set()
        self._max_slow = max(MIN_SLOW, num_bytes // max_message_bytes)
        self._max_of_connection = self._max_slow // 2
        self._max_waiting = max(MIN_WAITING, num_bytes // WINDOW_BYTES)
        self._limit_s = limit_s
        self._quick: dict[_Reader, None] = {}
        self._slow: dict[_Reader, None] = {}
        self._num_quick = 0
        """Quick messages that were let in: each is in `_quick`, or about to be."""
        self._asking: defaultdict[str, int] = defaultdict(int)
        """Quick and slow ones by connection."""
        self._known: OrderedDict[str, float] = OrderedDict()
        """When each known connection was last slow; -inf for those that have been prompt since."""
        self._waiting: dict[_Standing, RoundRobinQueue[asyncio.Future[None]]] = {
            standing: RoundRobinQueue() for standing in _Standing
        }
        self._num_turns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._was_late = False
        """Whether the last look was put off."""
        self._look_s = 0.0
        """When the next one is due."""

    async def message(self, connection: str, context: Any) -> bytes:
        """Return the next message of a call.

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
        """Yield the messages of a call until the client ends its side."""
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
            self._look_later()
        try:
            message = await uncancelled(context.read())
            is_prompt = reader in self._quick and message is not grpc.aio.EOF
            if is_prompt and self._standing(connection) is not _Standing.SLOW:
                self._know(connection, -math.inf)
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
        self._waiting[self._standing(connection)].put(connection, turn)
        if self._num_waiting > self._max_waiting:
            late = next(turns for turns in reversed(self._waiting.values()) if turns).take_back()
            if not late.done():
                late.set_exception(ReceivingError("too many calls wait to be received; try later", retry_s=RETRY_S))
        try:
            await turn
        except asyncio.CancelledError:
            for turns in self._waiting.values():
                turns.discard(connection, turn)
            if not turn.cancelled() and not turn.exception():
                self._num_quick -= 1
                self._leave(connection)
            raise

    def _leave(self, connection: str) -> None:
        """Note that a message of a connection has come or was given up, and let others in."""
        self._asking[connection] -= 1
        if not self._asking[connection]:
            del self._asking[connection]
        if any(self._waiting.values()):
            self._let_others_in()

    def _let_others_in(self) -> None:
        while self._num_quick < MAX_QUICK and (turn := self._next_turn()):
            if not turn[1].done():
                self._let_in(turn[0])
                turn[1].set_result(None)

    def _next_turn(self) -> tuple[str, asyncio.Future[None]] | None:
        """Each standing goes first now and then, so that none waits for ever."""
        first = FIRST[self._num_turns % len(FIRST)]
        for standing in (first, *_Standing):
            while turn := self._waiting[standing].take(self._may):
                if (now := self._standing(turn[0])) <= standing:
                    self._num_turns += 1
                    return turn
                self._waiting[now].put(*turn)  # it has been slow meanwhile
                if now is first:
                    return self._next_turn()
        return None

    @property
    def _num_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _standing(self, connection: str) -> _Standing:
        slow_s = self._known.get(connection)
        if slow_s == -math.inf:
            return _Standing.PROMPT
        return _Standing.UNKNOWN if slow_s is None or time.monotonic() >= slow_s + SLOW_S else _Standing.SLOW

    def _know(self, connection: str, slow_s: float) -> None:
        self._known[connection] = slow_s
        self._known.move_to_end(connection)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _look_later(self) -> None:
        self._look_s = time.monotonic() + MOMENT_S
        self._timer = asyncio.get_running_loop().call_later(MOMENT_S, self._look)

    def _look(self) -> None:
        """Count messages that take longer than MOMENT_S as slow, and give up slow ones that are too many or late."""
        now = time.monotonic()
        if now > self._look_s + MOMENT_S and not self._was_late:  # the event loop was held up, and reads have ended
            self._was_late = True
            self._look_later()
            return
        self._was_late = False
        for reader in [item for item in self._quick if now - item.started_s >= MOMENT_S]:
            del self._quick[reader]
            self._num_quick -= 1
            self._slow[reader] = None
            self._know(reader.connection, now)
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
        self._timer = None
        if self._quick or self._slow or self._num_waiting:
            self._look_later()

    def _surplus(self, coming: list[_Reader], now: float) -> _Reader:
        """Choose the slow message to give up: the oldest one of the connection with most. Where each connection has
        one, the oldest of all if it has had PATIENCE_S, else the newest."""
        connection, count = Counter(item.connection for item in coming).most_common(1)[0]
        if count > 1:
            return next(item for item in coming if item.connection == connection)
        return coming[0] if now - coming[0].started_s >= PATIENCE_S else coming[-1]

    def _late(self, coming: list[_Reader], now: float) -> list[_Reader]:
        """Return the oldest slow message of each connection whose other calls wait too long for it."""
        oldest: dict[str, _Reader] = {}
        for reader in coming:
            oldest.setdefault(reader.connection, reader)
        waiting = [name for turns in self._waiting.values() for name in turns.callers()]
        blocked = [name for name in waiting if self._asking.get(name, 0) >= self._max_of_connection]
        return [oldest[name] for name in blocked if name in oldest and now - oldest[name].started_s >= PATIENCE_S]

    def _give_up(self, reader: _Reader, error: Exception) -> None:
        """End the call, so that its read raises. If the read were cancelled instead, gRPC would leak the memory of the
        message (grpc/grpc issue 43360)."""
        if not reader.given_up:
            self._refused(error)
            reader.given_up = given_up = asyncio.ensure_future(abort(reader.context, error))
            self._giving_up.add(given_up)
            given_up.add_done_callback(self._has_given_up)

    def _has_given_up(self, given_up: asyncio.Future[NoReturn]) -> None:
        self._giving_up.discard(given_up)
        if not given_up.cancelled():
            drop_tracebacks(given_up.exception())
